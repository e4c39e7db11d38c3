"""``mesascope explore``."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from mesascope.cli.identify import FAMILY, family_of, learner_of, regressor_of
from mesascope.errors import ArgumentError, require_package


@dataclass(frozen=True)
class Explore:
    """Serve a page that shows which algorithm a network runs: drag the points of its task.

    LEARNER puts your own learner first: a network in a run folder (RUN, RUN:TRAINING or RUN:TRAINING:SEED) or a Python
    object (FILE.py:NAME or MODULE:NAME).
    """

    learner: tyro.conf.Positional[str] = ""
    """RUN, RUN:TRAINING, RUN:TRAINING:SEED, FILE.py:NAME or MODULE:NAME; if omitted, only the shipped networks."""
    sklearn: str | None = None  # scikit-learn regressor to show in place of LEARNER, such as "Ridge(alpha=1.0)".
    family: str | None = None
    """Tasks of your learner, such as "linear-regression(n_context=20, d_in=1)". Default: the training tasks of the run,
    otherwise 10 pairs with 1 input."""
    runs: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIR")] = ()
    """Folders of runs to list, or folders of such folders; ./runs if none is given and it exists."""
    save: Annotated[Path | None, tyro.conf.arg(metavar="PAGE.html")] = None
    """Write one page that opens from disk without Python, instead of serving."""
    host: str = "127.0.0.1"
    """Address to serve on; unless it is the loopback, other machines can open the page, without a password."""
    port: int = 0  # Port; 0 chooses a free one.
    open: bool = False  # Open the page in the browser.

    def __call__(self) -> None:
        require_package("bokeh", "mesascope explore", "explore")
        if not 0 <= self.port <= 65535:
            raise ArgumentError(f"--port must be from 0 to 65535, but is {self.port}: leave it out for a free one.")
        own = self._own()
        if self.save is not None:
            from mesascope.explore.saving import save

            print(save(own, self.save).resolve())
            return
        gc.disable()  # importing bokeh makes many objects, none of them garbage
        from mesascope.explore.server import Sessions, run, serve

        folders = self.runs or tuple(path for path in (Path("runs"),) if path.is_dir())

        def load() -> Any:
            from mesascope.explore.page import complete, fill, subjects

            found = subjects(own)
            return partial(fill, found=found, folders=folders), partial(complete, found=found, folders=folders)

        server, address = serve(load()[0] if own else Sessions(load), self.host, self.port)
        gc.freeze()  # otherwise the first garbage collection would delay the page
        gc.enable()
        print(f"mesascope explore: {address} (Ctrl-C stops it)", flush=True)
        run(server, address, opens=self.open)

    def _own(self) -> dict[str, Any]:
        """The user's learner as a subject, or nothing."""
        if self.learner and self.sklearn:
            raise ArgumentError(
                f"mesascope explore takes one learner, but is given {self.learner} and --sklearn: pass one of them."
            )
        if not self.learner and not self.sklearn:
            if self.family is not None:
                raise ArgumentError("--family goes with a learner, but there is none: pass LEARNER or --sklearn.")
            return {}
        from mesascope.explore.subjects import own_subject

        name, learner, family = regressor_of(self.sklearn) if self.sklearn else learner_of(self.learner)
        family = family_of(self.family, family, FAMILY.replace("d_in=10", "d_in=1"))
        return {"own": own_subject(name, learner, family)}
