"""Reports from run directories: HTML, terminal tables, figure files. Imports no torch."""

from mesascope.reports.figures import COLOURS, STYLE, figure_files
from mesascope.reports.html import write_report
from mesascope.reports.tables import ledger_markdown, ledger_rows, measured_text, print_claims, print_ledger

__all__ = [
    "COLOURS",
    "STYLE",
    "figure_files",
    "ledger_markdown",
    "ledger_rows",
    "measured_text",
    "print_claims",
    "print_ledger",
    "write_report",
]
