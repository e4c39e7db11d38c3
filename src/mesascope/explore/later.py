"""Computation of a panel's numbers in a thread, so that sliders stay smooth; stale numbers are marked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bokeh.document import Document
from bokeh.models import Div

from mesascope.explore.plots import say, sentence

# Milliseconds until numbers are marked as stale.
MOMENT = 150
# Several threads, so that a slow learner does not delay other panels.
_WORKERS = ThreadPoolExecutor(3, thread_name_prefix="explore")


class Later:
    """Computes a panel's numbers after each change; waiting requests are merged into one.

    Args:
        compute: called without arguments in the page's thread; returns a function for the worker.
        show: called with the worker's result in the page's thread.
        mark: text that marks numbers as stale.
        error: element for error messages.
        wait: milliseconds before the work begins, so that more urgent panels come first.
        unseen: True to compute also while the panel is out of view; otherwise it waits until it comes into view.
    """

    def __init__(
        self,
        doc: Document,
        compute: Callable[[], Callable[[], Any]],
        show: Callable[[Any], None],
        mark: Div,
        error: Div,
        wait: int = 0,
        *,
        unseen: bool = True,
    ) -> None:
        self.wait, self.unseen, self._due = wait, unseen, False
        mark.on_change("tags", lambda attr, old, new: self._seen())
        self.doc, self.compute, self.show, self.mark, self.error = doc, compute, show, mark, error
        self._waits = self._again = self._busy = self._marks = self._failed = False
        self.mark.update(text="Updating…", css_classes=["fresh"])

    def request(self) -> None:
        """Request new numbers; the mark, which costs time in the browser, appears only after `MOMENT`."""
        if not self._marks:
            self._marks = True
            self.doc.add_timeout_callback(self._mark, MOMENT)
        if not self.wait:
            self._begin()
        elif not self._waits:
            self._waits = True
            self.doc.add_timeout_callback(self._begin, self.wait)

    def _mark(self) -> None:
        self._marks = False
        if self._waits or self._busy or self._due:
            self.mark.css_classes = ["stale"]  # a new text would make the browser lay out the page again

    def _seen(self) -> None:
        """Start the pending computation once the panel is in view."""
        if self._due:
            self.request()

    def now(self) -> None:
        """Compute and show the numbers before returning, for a page without a server."""
        self.show(self.compute()())

    def _begin(self) -> None:
        self._waits = False
        self._due = not self.unseen and self.mark.document is not None and not self.mark.tags
        if self._due:
            return
        if self._busy:
            self._again = True
            return
        self._busy = True
        try:
            work = self.compute()
        except Exception as error:
            self._end(None, error)
            return
        _WORKERS.submit(self._run, work)

    def _run(self, work: Callable[[], Any]) -> None:
        found, failed = None, None
        try:
            found = work()
        except Exception as error:
            failed = error
        self.doc.add_next_tick_callback(lambda: self._end(found, failed))

    def _end(self, found: Any, failed: Exception | None) -> None:
        self._busy = False
        if self._again:
            self._again = False
            self._begin()
            return
        if failed is not None:
            say(self.error, sentence(failed))
        elif self._failed:  # clear only its own error: others use the same element
            say(self.error, "")
        self._failed = failed is not None
        if failed is None:
            self.show(found)
        self.mark.css_classes = ["fresh"]
