"""Throughput of recorded operations on described machines; no torch, no numpy."""

from lowprec.perf.datapath import Datapath, Scaling
from lowprec.perf.estimates import Estimate, Term, estimate
from lowprec.perf.hardware import Machine, list_machines, machine
from lowprec.perf.quantity import Quantity
from lowprec.perf.workloads import find_workload, list_workloads, load_workload

__all__ = [
    "Datapath",
    "Estimate",
    "Machine",
    "Quantity",
    "Scaling",
    "Term",
    "estimate",
    "find_workload",
    "list_machines",
    "list_workloads",
    "load_workload",
    "machine",
]
