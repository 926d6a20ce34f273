"""Throughput of recorded operations on described machines; no torch, no numpy."""

from lowprec.perf import fabric, facts, topology
from lowprec.perf.datapath import Datapath, Scaling
from lowprec.perf.estimates import Estimate, Term, estimate
from lowprec.perf.hardware import Machine, list_machines, machine
from lowprec.perf.parallel import Parallel
from lowprec.perf.quantity import Quantity
from lowprec.perf.roofline import Seconds
from lowprec.perf.system import System
from lowprec.perf.workloads import find_workload, list_workloads, load_workload
from lowprec.spec import BlockFormat, FloatFormat, IntFormat, Projection, Quantizer, Recipe, Rule
from lowprec.spec.facts import Facts
from lowprec.spec.workload import Attention, Embedding, Matmul, Vector, Workload

# Validators are built at first use: here at once, or a first estimate would take twice as long as
# the next one.
_FORMATS = (FloatFormat, IntFormat, BlockFormat, Projection, Quantizer)
_WORK = (Rule, Recipe, Matmul, Attention, Vector, Embedding, Workload)
_MACHINES = (Machine, facts.Facts, topology.Level, System, fabric.Constants, Parallel)
for _each in (*_FORMATS, Facts, *_WORK, *_MACHINES, Seconds, Term, Estimate):
    _each.model_rebuild()

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
