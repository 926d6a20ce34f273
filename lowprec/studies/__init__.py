"""Studies: grids of accuracy and throughput cells, stored as records, resumable at any moment."""

from lowprec.studies.cells import Executor
from lowprec.studies.run import StudyResult, study
from lowprec.studies.single import evaluate
from lowprec.studies.study import Study, load_study

__all__ = ["Executor", "Study", "StudyResult", "evaluate", "load_study", "study"]
