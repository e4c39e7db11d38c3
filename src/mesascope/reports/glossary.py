"""Terms that reports use, each explained in half a sentence."""

from __future__ import annotations

import re

# Names of a term, and its meaning. A text uses a term if it contains any of its names, singular or plural.
_TERMS = """
claim: a sentence that can be false, judged from the arrays of this run
finding: a claim that is not a premise
premise: a claim that others rest on; where it does not hold, they are undecided
holds, fails, undecided: the interval lies inside the bound, outside it, or across an end of it; a claim is also \
undecided if its premise does not hold or if it has too few replicates
measured: a value, and an interval that contains the true value in 99 % of cases
seed: a number that fixes all random draws of one network: its initial weights and its training tasks
bound: the range that the interval must lie in, shaded in the drawing; "set by us" means that we chose it for the \
settings of this run, "set by paper" that the paper prints it
reported: a value from the paper or its authors' code, measured with their settings; it is shown beside ours and not \
judged, so it may lie outside a bound that we set
learner: anything that predicts the targets of queries from a context: a network, an algorithm, an estimator
context, query: the pairs (x, y) from which a learner learns a task, and an input whose target it predicts
N = d: as many pairs in a context as an input has numbers
construction, constructed: a network whose weights are written down so that it runs a given algorithm
sensitivity, sensitivities, dy/dx_q: the derivative of a prediction with respect to its query
W_KQ, W_PV: the products W_K^T W_Q and P W_V of an attention head's weights; its output depends on these alone
gradient descent, GD: gradient descent on the squared error over the context
GD++: gradient descent whose steps also multiply the inputs by I - gamma X X^T, so that the next step converges faster
eta: the step size of gradient descent
gamma: the strength with which GD++ changes the inputs
damping: a factor on each application of a step
ridge: least squares with a penalty on squared weights; also the factor of that penalty
softmax, linear layer: attention whose weights are a softmax of products of keys and queries, or the products themselves
delta: a layer of linear attention that first removes what it has stored for a key, then writes (DeltaNet)
mesa: a layer of attention that solves a least-squares problem over all earlier tokens at each token
nats: a unit of cross-entropy, in natural logarithms
MAML: meta-learning of initial weights from which a few gradient steps learn a new task
sparse-MAML: MAML that also learns which weights those steps may change
candidate: a known algorithm whose predictions are compared with the learner's
condition: one way to draw or distort the tasks on which they are compared
tolerance: the largest squared difference of predictions, relative to their size, that counts as an approximation
"""


def used_terms(text: str) -> dict[str, str]:
    """Terms in a text, with their explanations.

    >>> list(used_terms("2 claims fail, by 0.1 nats"))
    ['claim', 'nats']
    """
    terms = {names: explained for names, _, explained in (line.partition(": ") for line in _TERMS.strip().split("\n"))}

    def is_used(names: str) -> bool:
        found = "|".join(map(re.escape, names.split(", ")))
        return re.search(rf"(?<![\w-])(?:{found})s?(?![\w+-])", text, re.IGNORECASE) is not None

    return {names: explained for names, explained in terms.items() if is_used(names)}
