"""Throughput of recorded operations on described machines; no torch, no numpy."""

from lowprec.perf.datapath import Datapath, Scaling
from lowprec.perf.estimates import Estimate, Term, estimate
from lowprec.perf.hardware import Machine, list_machines, machine
from lowprec.perf.quantity import Quantity

__all__ = [
    "Datapath",
    "Estimate",
    "Machine",
    "Quantity",
    "Scaling",
    "Term",
    "estimate",
    "list_machines",
    "machine",
]
