from .figures import draw_figures as draw_figures, drawn as drawn, figure_files as figure_files, plotted as plotted
from .html import claims_page as claims_page, figures_page as figures_page, write_report as write_report
from .panels import (
    Figure as Figure,
    Grid as Grid,
    Histogram as Histogram,
    Level as Level,
    Line as Line,
    Lines as Lines,
    Matrices as Matrices,
    curves as curves,
    strip as strip,
    sweep as sweep,
)
from .tables import (
    console as console,
    counts_text as counts_text,
    holding_text as holding_text,
    ledger_markdown as ledger_markdown,
    print_claims as print_claims,
    print_ledger as print_ledger,
)
