"""Accuracy of a model in low precision: models, texts, measures, statistics."""

from lowprec.eval.data import Suite, load_suite, load_text
from lowprec.eval.models import LoadedModel, load_model
from lowprec.eval.perplexity import Baseline, evaluate_windows, make_baseline, score_windows
from lowprec.eval.protocols import Protocol, Windows, cut, windows_of
from lowprec.eval.text import Text

__all__ = [
    "Baseline",
    "LoadedModel",
    "Protocol",
    "Suite",
    "Text",
    "Windows",
    "cut",
    "evaluate_windows",
    "load_model",
    "load_suite",
    "load_text",
    "make_baseline",
    "score_windows",
    "windows_of",
]
