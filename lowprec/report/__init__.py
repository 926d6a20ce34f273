"""Reports: from records to one self-contained HTML file and the PNG of its main chart."""

from lowprec.report.data import Candidate, Price, Report, Source
from lowprec.report.write import write

__all__ = ["Candidate", "Price", "Report", "Source", "write"]
