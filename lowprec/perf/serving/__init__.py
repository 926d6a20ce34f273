"""Serving: from one pass to tokens per second under load."""

from lowprec.perf.serving.backend import Backend, backend
from lowprec.perf.serving.disaggregation import Disaggregated, disaggregated
from lowprec.perf.serving.service import Service
from lowprec.perf.serving.simulation import simulate
from lowprec.perf.serving.static import static
from lowprec.perf.serving.traffic import Percentiles, Served, Traffic

__all__ = [
    "Backend",
    "Disaggregated",
    "Percentiles",
    "Served",
    "Service",
    "Traffic",
    "backend",
    "disaggregated",
    "simulate",
    "static",
]
