"""Reports: from records to one self-contained HTML file and the PNG of its main chart.

`page.write` writes both; `data` is what they show. Text for terminals is in `text`.
"""
