"""Language models as models of Hugging Face's transformers, for `generate`, `from_pretrained` and `Trainer`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from mesascope.errors import ArgumentError, refuse, require_instance, require_package
from mesascope.language.models import language_model_config
from mesascope.language.packing import Packed, document_starts, padding_mask
from mesascope.nets import LanguageModel, LanguageModelConfig, select_state
from mesascope.nets.language_model import require_tokens
from mesascope.records import from_record, to_record
from mesascope.shapes import Float, Int, Tensor
from mesascope.training.processes import mark_undecayed, undecayed

require_package("transformers", "mesascope.language.huggingface", "hf")

from transformers import AutoConfig, AutoModelForCausalLM, Cache, GenerationMixin, PreTrainedConfig, PreTrainedModel  # noqa: E402
from transformers.modeling_outputs import CausalLMOutputWithPast  # noqa: E402
from transformers.utils.generic import can_return_tuple  # noqa: E402

# Name of the argument for a cache: `cache` from transformers 5.24 on.
_CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class MesascopeConfig(PreTrainedConfig):
    """Config of `MesascopeForCausalLM`: the record of a `LanguageModelConfig`.

    Args:
        network: the `LanguageModelConfig` or its record; if None, two small layers (softmax, mesa) on bytes.
        **kwargs: transformers' own settings, such as ``eos_token_id``.
    """

    model_type = "mesascope"

    def __init__(self, network: LanguageModelConfig | Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        config = language_model_config("softmax, mesa", 257, 256) if network is None else network
        self.network = dict(config) if isinstance(config, Mapping) else to_record(config)
        own = self.build_config()
        self.vocab_size, self.max_position_embeddings = own.vocabulary, own.context
        self.hidden_size, self.num_hidden_layers = own.transformer.width, own.transformer.n_layers
        kwargs["tie_word_embeddings"] = False  # the network ties its own
        super().__init__(**kwargs)

    def build_config(self) -> LanguageModelConfig:
        """Return the config of the network."""
        config = from_record(self.network)
        require_instance("network", config, LanguageModelConfig)
        return config


class StateCache(Cache):
    """Cache of a language model: the tokens read, and the resulting state of every layer.

    It can be cropped, and reordered for beam search. A token cannot be removed from a state. So a crop restores the
    state before the last call, or the initial state, and the next call reads the remaining tokens again.
    """

    is_compileable = False  # type: ignore[assignment]
    is_croppable = True  # type: ignore[assignment]
    # Without this, transformers does not call get_seq_length.
    is_linear = (False,)  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.reset()

    def reset(self) -> None:
        self._tokens: Tensor | None = None
        self._mask: Tensor | None = None
        # Number of tokens read and the resulting state, after and before the last call.
        self._after: tuple[int, Any] = (0, None)
        self._before: tuple[int, Any] = (0, None)

    def read(
        self, model: LanguageModel, tokens: Int[Tensor, "batch t"], mask: Tensor | None, last: int | None
    ) -> Float[Tensor, "batch last vocabulary"]:
        """Read new tokens; return the logits of the final ``last`` of them, or of all if None.

        Args:
            model: the same model at each call.
            mask: False for padding; covers all tokens, or only the new ones.
        """
        count = tokens.shape[-1]
        seen = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask[:, -count:]
        if self._tokens is not None and len(self._tokens) != len(tokens):
            refuse("input_ids", f"have {len(self._tokens)} rows, like the cache", len(tokens), "begin another cache")
        if self._tokens is not None and self._mask is not None:
            tokens, seen = torch.cat([self._tokens, tokens], -1), torch.cat([self._mask, seen], -1)
        done, state = self._after
        state = model.init_state(len(tokens)) if state is None else state
        told, unread = count if last is None else min(last, count), None if bool(seen.all()) else seen[:, done:]
        logits, after = model.advance(tokens[:, done:], state, unread, told)
        self._tokens, self._mask = tokens, seen
        self._before, self._after = self._after, (tokens.shape[-1], after)
        return logits

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self._tokens is None else self._tokens.shape[-1]

    @property
    def counts(self) -> Tensor:
        """Number of tokens read in each row, without padding."""
        return torch.zeros(1) if self._mask is None else self._mask.sum(-1)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last ``-tokens_to_remove`` tokens; a positive number is the number of tokens to keep."""
        if self._tokens is None or self._mask is None:
            return
        length = tokens_to_remove if tokens_to_remove > 0 else self.get_seq_length() + tokens_to_remove
        self._tokens, self._mask = self._tokens[:, : max(length, 0)], self._mask[:, : max(length, 0)]
        if length < self._after[0]:
            self._after = self._before if self._before[0] <= length else (0, None)
            self._before = (0, None)

    def batch_select_indices(self, indices: Int[Tensor, " count"]) -> None:
        """Keep these sequences of the batch, in this order."""
        if self._tokens is None or self._mask is None:
            return
        chosen = indices.long()
        self._tokens, self._mask = self._tokens[chosen], self._mask[chosen]
        self._after, self._before = (
            (done, None if state is None else select_state(state, chosen))
            for done, state in (self._after, self._before)
        )

    def reorder_cache(self, beam_idx: Int[Tensor, " beams"]) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence of the batch ``repeats`` times."""
        if self._tokens is not None:
            self.batch_select_indices(torch.arange(len(self._tokens)).repeat_interleave(repeats))


class MesascopeForCausalLM(PreTrainedModel, GenerationMixin):
    """Causal language model of transformers that wraps a `LanguageModel`, its attribute ``model``.

    It supports `save_pretrained`, `from_pretrained`, `Trainer`, and `generate` (with a state cache, beam search or an
    assistant). Importing this module registers it with ``AutoModelForCausalLM``.

    >>> from mesascope.language import language_model_config
    >>> model = MesascopeForCausalLM(MesascopeConfig(language_model_config("softmax, mesa", 257, 64, width=32)))
    >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False, pad_token_id=0).shape
    torch.Size([1, 7])
    """

    config_class = MesascopeConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    accepts_loss_kwargs = True
    _input_embed_layer = "embedding"

    def __init__(self, config: MesascopeConfig) -> None:
        super().__init__(config)
        self.model = config.build_config().build().to(torch.get_default_dtype())  # transformers sets it to dtype
        self.post_init()

    @classmethod
    def of(cls, model: LanguageModel, **kwargs: Any) -> MesascopeForCausalLM:
        """Wrap a network and share its weights; ``kwargs`` are passed to `MesascopeConfig`."""
        require_instance("model", model, LanguageModel)
        with torch.device("meta"):
            made = cls(MesascopeConfig(model.config, **kwargs))
        made.model = model
        return made.train(model.training)

    @can_return_tuple
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None, labels: Int[Tensor, "batch t"] | None = None,
        use_cache: bool | None = None, logits_to_keep: int | Tensor = 0, output_hidden_states: bool | None = None,
        output_attentions: bool | None = None, position_ids: Tensor | None = None, seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None, cu_seq_lens_k: Tensor | None = None, max_length_q: int | None = None,
        max_length_k: int | None = None, num_items_in_batch: Tensor | int | None = None, cache: Cache | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:  # fmt: skip
        """Next-token logits, and the loss if there are labels.

        A row may contain several independent documents, as packed by ``DataCollatorWithFlattening``.

        Args:
            input_ids: tokens ``(batch, t)``; with a cache, the new tokens.
            attention_mask: 0 for padding, on the left (without a cache also on the right); covers all tokens, or only
                the new ones.
            past_key_values, cache: a `StateCache`; transformers uses the second name from 5.24 on.
            labels: ``input_ids``, with -100 for tokens to ignore; a document's first token is always ignored. In
                training on more than `LanguageModel.at_once` tokens, the loss is computed in blocks; logits are None.
            use_cache: return a cache.
            logits_to_keep: number of last tokens with logits, 0 for all, or the positions of these tokens.
            output_hidden_states: return the hidden states before the first layer and after each layer,
                ``(batch, t, width)``, without the final norm.
            output_attentions: not supported, as few layers compute attentions; see `LanguageModel.run_with_cache`.
            position_ids: position of each token in its document, from 0.
            seq_idx: index of each token's document.
            cu_seq_lens_q, cu_seq_lens_k: start of each document and end of the last, in the concatenated rows.
            max_length_q, max_length_k: ignored.
            num_items_in_batch: divisor of the loss, passed by `Trainer`.
            **others: must be None or False.
        """
        self._refuse(output_attentions, others)
        cache = _states(cache, past_key_values)
        cache = StateCache() if use_cache and cache is None else cache
        lengths = {"cu_seq_lens_q": cu_seq_lens_q, "cu_seq_lens_k": cu_seq_lens_k}
        rows = _rows(input_ids, attention_mask, cache, position_ids=position_ids, seq_idx=seq_idx, **lengths)
        last = None if isinstance(logits_to_keep, Tensor) else logits_to_keep or None
        if labels is not None and (last is not None or isinstance(logits_to_keep, Tensor)):
            refuse("logits_to_keep", "be 0 where labels are given", logits_to_keep, "leave one of them out")
        kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-(last or 0), None)
        labels = None if labels is None else self._counted(labels, rows)
        # The logits of all tokens would need many times the memory of all other tensors.
        by_blocks = self.training and cache is None and rows.real.numel() > self.model.at_once
        targets = functional.pad(labels, (0, 1), value=-100)[:, 1:] if by_blocks and labels is not None else None
        hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        points = ["embedded", *(f"layers.{index}" for index in range(self.config.num_hidden_layers))]
        with self.model.cached(points) if hidden else contextlib.nullcontext({}) as held:
            found, joined = self._logits(rows, cache, None if hidden else last, targets)
        count = rows.tokens.shape[-1]  # after a crop, the cache may have read earlier tokens again
        return CausalLMOutputWithPast(
            loss=None if labels is None else self._loss(found, labels, targets, num_items_in_batch),
            logits=found[:, kept] if targets is None else None,  # type: ignore[arg-type]
            hidden_states=tuple(joined(own)[:, -count:] for own in held.values()) or None,
            **{_CACHE: cache},  # type: ignore[arg-type]
        )

    def _loss(self, found: Tensor, labels: Tensor, targets: Tensor | None, count: Tensor | int | None) -> Any:
        """Mean loss, from logits or, if there are targets, from token losses."""
        if targets is not None:
            return found.sum() / ((targets != -100).sum() if count is None else count)
        size = self.config.vocab_size
        return self.loss_function(logits=found, labels=labels, vocab_size=size, num_items_in_batch=count)

    def _logits(
        self, rows: _Rows, cache: StateCache | None, last: int | None, targets: Tensor | None
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Logits of the last or all tokens (losses if there are targets), and a function that restores packed rows."""
        several = rows.starts.sum(-1) if cache is None else rows.starts.sum(-1) + (cache.counts > 0)
        if bool((several > 1).any()):
            if cache is not None:
                rule = "be left out where a row holds several documents"
                refuse("use_cache", rule, True, "pass each document in a row of its own")
            packed = Packed(rows.starts, rows.real)
            if targets is not None:
                return self.model(packed.parted(rows.tokens), targets=packed.parted(targets, -100)), packed.joined
            return packed.joined(self.model(packed.parted(rows.tokens))), packed.joined
        if cache is not None:
            return cache.read(self.model, rows.tokens, rows.mask, last), nn.Identity()
        # The network is causal, so padding on the right needs no mask.
        seen = rows.real.cummax(-1).values
        seen = None if bool(seen.all()) else seen
        return self.model(rows.tokens, None, seen, last if targets is None else None, targets), nn.Identity()

    def _counted(self, labels: Tensor, rows: _Rows) -> Tensor:
        """Labels with -100 at the first token of each document and at each token that follows padding."""
        real = rows.real
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.shape != real.shape:
            given = (tuple(labels.shape), labels.dtype) if isinstance(labels, Tensor) else labels
            refuse("labels", f"be whole numbers of shape {tuple(real.shape)}", given, "pass input_ids, say")
        after_padding = torch.cat([torch.zeros_like(real[:, :1]), ~real[:, :-1]], -1)
        counted = labels.long().masked_fill(rows.starts | after_padding, -100)
        if not self.training or counted.device.type == "cpu":
            require_tokens("labels", counted[counted != -100], self.config.vocab_size)
        return counted

    def _refuse(self, output_attentions: bool | None, others: Mapping[str, Any]) -> None:
        """Raise for unsupported keywords that would change the result."""
        if self.config.output_attentions if output_attentions is None else output_attentions:
            refuse("output_attentions", "be False", True, "ask model.run_with_cache for layers.*.attention.pattern")
        for name, value in others.items():
            if value is not None and value is not False:
                refuse(name, "be left out, as the model has no such input", value, "pass input_ids and attention_mask")

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the output layer; None if it is tied to the input embeddings."""
        return self.model.logits

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the input embeddings by a module with weights of the same shape."""
        self.model.embedding = self._fitting(value)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output layer by a module with weights of the same shape."""
        if self.model.logits is None:
            refuse("new_embeddings", "be left out where logits are products with the input embeddings", "a module",
                   "call set_input_embeddings")  # fmt: skip
        self.model.logits = self._fitting(new_embeddings)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Module:
        """Return the input embeddings; raise if an argument asks for a change."""
        size = self.config.vocab_size
        if new_num_tokens not in (None, size) or args or any(kwargs.values()):
            given = (new_num_tokens, *args, *(f"{name}={value}" for name, value in kwargs.items()))
            refuse("new_num_tokens", f"be only {size}, the vocabulary of the network", given, "build another network")
        return self.get_input_embeddings()

    def _fitting(self, module: nn.Module) -> Any:
        shape, own = (self.config.vocab_size, self.config.hidden_size), getattr(module, "weight", None)
        if not isinstance(own, Tensor) or own.shape != shape:
            refuse("the module", f"have weights of shape {shape}", None if own is None else tuple(own.shape),
                   "build a network with another vocabulary")  # fmt: skip
        return module

    def prepare_inputs_for_generation(
        self, *args: Any, past_key_values: Any = None, cache: Any = None, **kwargs: Any
    ) -> Any:
        """Inputs of `forward`, with a `StateCache` instead of transformers' empty cache."""
        base: Any = super()
        cache = _states(cache, past_key_values, begins=True)
        return base.prepare_inputs_for_generation(*args, **{_CACHE: cache}, **kwargs)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load a model as transformers does, but raise if weights are missing.

        Parameters without weight decay are marked for `mesascope.training`. The `Trainer` of transformers ignores the
        marks: it exempts only biases and norms.
        """
        base: Any = super()
        model, found = base.from_pretrained(*args, output_loading_info=True, **kwargs)
        lost = sorted({*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])})
        if lost:
            raise ArgumentError(f"the folder must hold all weights of the network, but lacks {lost[0]}: pass another.")
        with torch.device("meta"):
            built = model.config.build_config().build()
        mark_undecayed(model.model, undecayed(built))
        return (model, found) if output_loading_info else model

    def _init_weights(self, module: nn.Module) -> None:
        """Keep the weights that the network was built with."""


class _Rows(NamedTuple):
    """New tokens, the attention mask, a mask of real (not padding) tokens, and a mask of document starts."""

    tokens: Int[Tensor, "batch t"]
    mask: Tensor | None
    real: Tensor
    starts: Tensor


def _rows(input_ids: Any, attention_mask: Any, cache: StateCache | None, **documents: Tensor | None) -> _Rows:
    if not isinstance(input_ids, Tensor) or input_ids.ndim != 2:
        given = tuple(input_ids.shape) if isinstance(input_ids, Tensor) else input_ids
        refuse("input_ids", "have shape (batch, t)", given, "pass numbers of tokens")
    tokens = input_ids.long() if input_ids.dtype == torch.int32 else input_ids
    count, read = tokens.shape[-1], 0 if cache is None else cache.get_seq_length()
    mask = padding_mask(attention_mask, count, count + read)
    real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask[:, -count:]
    before = cache.counts if cache is not None and read else None
    return _Rows(tokens, mask, real, document_starts(real, before, **documents))


def _states(cache: Any, past_key_values: Any, begins: bool = False) -> StateCache | None:
    """Return the cache passed under either name; if generation ``begins``, replace an empty cache of another class."""
    given = past_key_values if cache is None else cache
    if None not in (cache, past_key_values):
        refuse("past_key_values", "be left out where cache is given", type(given).__name__, "pass one of them")
    if given is None or isinstance(given, StateCache):
        return given
    if not begins or given.get_seq_length():
        refuse("cache", "be a StateCache", type(given).__name__, "pass what an earlier call returned, or StateCache()")
    return StateCache()


AutoConfig.register(MesascopeConfig.model_type, MesascopeConfig, exist_ok=True)
AutoModelForCausalLM.register(MesascopeConfig, MesascopeForCausalLM, exist_ok=True)
