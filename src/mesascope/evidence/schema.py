"""JSON schema of judged claims: the records of `judge`, with the meaning of each field."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec

# Version of the schema. To remove, rename or redefine a field needs a new version; a new optional field does not.
VERSION = 1

Whole64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


def _is(text: str) -> msgspec.Meta:
    """Description of a field."""
    return msgspec.Meta(description=text)


class ClaimRecord(TypedDict):
    """A judged claim: a sentence that can be false, its interval and its verdict."""

    id: Annotated[str, _is("Name of the claim, unique within its study")]
    sentence: Annotated[str, _is("The claim in words")]
    measures: Annotated[str, _is("The quantity that the bound is for, in words")]
    source: Annotated[str, _is("Origin: a place in a paper, 'derived: argument', or 'ours: reason'")]
    about: Annotated[Literal["training", "algorithms"], _is("'algorithms' if no trained network is involved")]
    quantifier: Annotated[
        str,
        _is(
            "Quantity that must be within the bound: 'every' replicate, their 'median', the 'share' with a property, a "
            "'bootstrap' of a statistic, or 'exact' numbers"
        ),
    ]
    over: Annotated[str, _is("Replicate axis: 'seeds', 'pools', 'contexts', 'draws', 'sizes', ...")]
    n: Annotated[Whole64, _is("Number of replicates")]
    at_least: Annotated[Whole64, _is("Number of replicates that the claim requires for a verdict")]
    premises: Annotated[list[str], _is("Ids of claims that must hold, otherwise this claim is undecided")]
    value: Annotated[float | None, _is("Estimate; the worst of several replicates or cases; null if there is none")]
    low: Annotated[float | None, _is("Lower end of the interval; null if infinite, or if there is none")]
    high: Annotated[float | None, _is("Upper end of the interval; null if infinite, or if there is none")]
    bound: Annotated[str, _is("Bound as text")]
    bound_low: Annotated[float | None, _is("Lower end of the bound; null if there is none")]
    bound_high: Annotated[float | None, _is("Upper end of the bound; null if there is none")]
    bound_by: Annotated[Literal["us", "paper"], _is("Origin of the bound")]
    reported: Annotated[str | None, _is("Value from the paper, with its origin")]
    p: NotRequired[
        Annotated[
            float | None,
            _is("Smallest error rate that still decides the claim; 1 if undecided, null if nothing is tested"),
        ]
    ]
    former: NotRequired[Annotated[str, _is("Bound, label or verdict before a change made after the result was known")]]
    unlike: NotRequired[
        Annotated[str, _is("Settings of the source from which the run departs; a failure then does not refute it")]
    ]
    verdict: Annotated[
        Literal["holds", "fails", "undecided"],
        _is("'holds' if the interval lies inside the bound, 'fails' if outside, otherwise 'undecided'"),
    ]
    reason: Annotated[str, _is("Reason for the verdict; if undecided, with the number of replicates that would decide")]
    figure: NotRequired[Annotated[str, _is("Figure of the study that shows the claim")]]


class JudgedClaim(ClaimRecord):
    """A judged claim, and the run or the test that it was judged in."""

    study: NotRequired[Annotated[str, _is("Name of the study")]]
    preset: NotRequired[Annotated[str, _is("Preset of the run: which settings and bounds apply")]]
    run: NotRequired[Annotated[str, _is("Folder of the run")]]
    command: NotRequired[Annotated[str, _is("Command that made the run")]]
    test: NotRequired[Annotated[str, _is("pytest's id of the test that judged the claim")]]


class JudgedClaims(TypedDict):
    """Judged claims, as `Verdicts.to_json` writes them; objects may have further fields."""

    schema: Annotated[Literal[1], _is("Version of this schema")]
    claims: list[JudgedClaim]


def claims_schema() -> dict[str, Any]:
    """JSON schema of judged claims; ``claims.schema.json`` beside this module is a copy."""
    own = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:mesascope:claims:{VERSION}"}
    return own | msgspec.json.schema(JudgedClaims)
