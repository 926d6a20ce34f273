"""What things are: frozen, validated, without torch or numpy."""

from lowprec.spec.approximation import Approximation, Estimate, load_estimate
from lowprec.spec.base import Spec, digest
from lowprec.spec.block import BlockFormat, Level, Outlier
from lowprec.spec.catalogue import list_formats, load_facts, load_format
from lowprec.spec.datapath import (
    Aligned,
    Datapath,
    DatapathFacts,
    Promotion,
    Scaling,
    Tree,
    TwoStage,
    list_datapaths,
    load_datapath,
    load_datapath_facts,
)
from lowprec.spec.facts import Facts
from lowprec.spec.format import CodebookFormat, FloatFormat, Format, IntFormat
from lowprec.spec.load import build, data_dir, read_toml
from lowprec.spec.projection import Projection
from lowprec.spec.quantizer import Quantizer
from lowprec.spec.recipe import OPERANDS, Recipe, Rule
from lowprec.spec.record import Metric, Record
from lowprec.spec.text import load_quantizer, load_recipe
from lowprec.spec.training import Delayed, InputGradient, WeightGradient
from lowprec.spec.transform import Transform
from lowprec.spec.workload import Attention, Embedding, Matmul, Op, Vector, Workload

__all__ = [
    "OPERANDS",
    "Aligned",
    "Approximation",
    "Attention",
    "BlockFormat",
    "CodebookFormat",
    "Datapath",
    "DatapathFacts",
    "Delayed",
    "Embedding",
    "Estimate",
    "Facts",
    "FloatFormat",
    "Format",
    "InputGradient",
    "IntFormat",
    "Level",
    "Matmul",
    "Metric",
    "Op",
    "Outlier",
    "Projection",
    "Promotion",
    "Quantizer",
    "Recipe",
    "Record",
    "Rule",
    "Scaling",
    "Spec",
    "Transform",
    "Tree",
    "TwoStage",
    "Vector",
    "WeightGradient",
    "Workload",
    "build",
    "data_dir",
    "digest",
    "list_datapaths",
    "list_formats",
    "load_datapath",
    "load_datapath_facts",
    "load_estimate",
    "load_facts",
    "load_format",
    "load_quantizer",
    "load_recipe",
    "read_toml",
]
