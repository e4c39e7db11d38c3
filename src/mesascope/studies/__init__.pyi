from .estimating import estimate as estimate
from .lab import Lab as Lab
from .ledger import ledger_rows as ledger_rows
from .mutating import Mutated as Mutated, mutate as mutate
from .running import (
    changed_settings as changed_settings,
    conclude as conclude,
    new_run as new_run,
    resume_run as resume_run,
    run_study as run_study,
)
from .verifying import Verification as Verification, verify as verify
