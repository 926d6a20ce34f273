"""Accuracy of a model in low precision: models, texts, measures, statistics."""

from lowprec.eval.data import Protocol, Suite, Text, Windows, cut, load_suite, load_text
from lowprec.eval.models import LoadedModel, load_model
from lowprec.eval.perplexity import Baseline, evaluate_windows, make_baseline

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
]
