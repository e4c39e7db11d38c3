"""The run-time checker behind jaxtyping's hook: beartype, with ints accepted as floats as Python's typing has it."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
