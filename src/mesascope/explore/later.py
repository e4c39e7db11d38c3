"""Computation of a panel's numbers in a thread, so that sliders stay smooth; stale numbers are marked meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bokeh.document import Document
from bokeh.models import Div

from mesascope.explore.plots import say, sentence

# Milliseconds until numbers are marked as stale.
MOMENT = 150
# Several, so that a slow learner does not hold up other panels.
_WORKERS = ThreadPoolExecutor(3, thread_name_prefix="explore")


class Later:
    """Computes a panel's numbers after changes; earlier requests that have not begun are dropped.

    Args:
        compute: called without arguments in the page's thread; returns a function for the worker.
        show: called with the worker's result in the page's thread.
        mark: text that says that numbers are stale.
        error: place of an error sentence.
        wait: milliseconds before the work begins, for panels that others should not wait for.
        unseen: compute also while the mark's panel is out of view; else when it comes into view.
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
        """Ask for new numbers; the mark is shown if they take longer than a moment, as it costs time in the browser."""
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
            self.mark.css_classes = ["stale"]  # another text would lay out the page anew

    def _seen(self) -> None:
        """Compute what is due after the page has marked the panel as in view."""
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
        elif self._failed:  # others show errors there, too
            say(self.error, "")
        self._failed = failed is not None
        if failed is None:
            self.show(found)
        self.mark.css_classes = ["fresh"]
