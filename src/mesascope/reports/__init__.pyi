from .figures import COLOURS as COLOURS, STYLE as STYLE, figure_files as figure_files
from .html import write_report as write_report
from .tables import (
    ledger_markdown as ledger_markdown,
    ledger_rows as ledger_rows,
    measured_text as measured_text,
    print_claims as print_claims,
    print_ledger as print_ledger,
)
