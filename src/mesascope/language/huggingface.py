"""Language models as causal language models of Hugging Face's transformers: its `generate`, folders and `Trainer`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from mesascope.errors import refuse, require_instance, require_package
from mesascope.language.models import layered
from mesascope.language.packing import Packed, document_starts, padding_mask
from mesascope.nets import LanguageModel, LanguageModelConfig, select_state
from mesascope.nets.language_model import require_tokens
from mesascope.records import from_record, to_record
from mesascope.shapes import Float, Int, Tensor
from mesascope.training.marks import mark_undecayed, undecayed

require_package("transformers", "mesascope.language.huggingface", "hf")

from transformers import AutoConfig, AutoModelForCausalLM, Cache, GenerationMixin, PreTrainedConfig, PreTrainedModel  # noqa: E402
from transformers.modeling_outputs import CausalLMOutputWithPast  # noqa: E402
from transformers.utils.generic import can_return_tuple  # noqa: E402

__all__ = ["MesascopeConfig", "MesascopeForCausalLM", "StateCache"]


class MesascopeConfig(PreTrainedConfig):
    """What a `MesascopeForCausalLM` is built from: the record of a `LanguageModelConfig`.

    Args:
        network: that config, or its record; two small layers, softmax and mesa, on bytes if None.
        **kwargs: of transformers' own, such as ``eos_token_id``.
    """

    model_type = "mesascope"

    def __init__(self, network: LanguageModelConfig | Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        config = layered("softmax, mesa", 257, 256) if network is None else network
        self.network = dict(config) if isinstance(config, Mapping) else to_record(config)
        own = self.build_config()
        self.vocab_size, self.max_position_embeddings = own.vocabulary, own.context
        self.hidden_size, self.num_hidden_layers = own.transformer.width, own.transformer.n_layers
        kwargs["tie_word_embeddings"] = False  # the network ties its own
        super().__init__(**kwargs)

    def build_config(self) -> LanguageModelConfig:
        """The config of the network."""
        config = from_record(self.network)
        require_instance("network", config, LanguageModelConfig)
        return config


class StateCache(Cache):
    """What a language model has read: the state of every layer, and the tokens.

    It can be reordered for beams and cropped. As states do not forget a token that they took in, a crop goes back to
    the state before the last tokens that were read at once, or else to the beginning, and what is left of the tokens
    after it is read again with the next: to the same numbers.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._tokens: Tensor | None = None
        self._mask: Tensor | None = None
        self._after: tuple[int, Any] = (0, None)  # number of tokens that the state is after, and the state
        self._before: tuple[int, Any] = (0, None)

    def read(
        self, model: LanguageModel, tokens: Int[Tensor, "batch t"], mask: Tensor | None, last: int | None
    ) -> Float[Tensor, "batch last vocabulary"]:
        """The logits of what follows the last tokens, after those read before.

        Args:
            model: the same each time.
            tokens: new ones.
            mask: False for padding, of all tokens read or of the new ones alone.
            last: how many are answered; all if None.
        """
        count = tokens.shape[-1]
        seen = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask[:, -count:]
        if self._tokens is not None and len(self._tokens) != len(tokens):
            refuse("input_ids", f"be of {len(self._tokens)} rows, as the cache is", len(tokens), "begin another cache")
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
        """Number of tokens read."""
        return 0 if self._tokens is None else self._tokens.shape[-1]

    @property
    def counts(self) -> Tensor:
        """Number of tokens read in each row, but for padding."""
        return torch.zeros(1) if self._mask is None else self._mask.sum(-1)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens, their number given as a negative one, or, if it is positive, all but so many."""
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
        """Keep these sequences of the batch, in this order."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Have each sequence of the batch ``repeats`` times."""
        if self._tokens is not None:
            self.batch_select_indices(torch.arange(len(self._tokens)).repeat_interleave(repeats))

    def reset(self) -> None:
        """Forget all tokens."""
        self._tokens, self._mask, self._after, self._before = None, None, (0, None), (0, None)

    @property
    def is_compileable(self) -> bool:
        """No: its size may grow."""
        return False

    @property
    def is_croppable(self) -> bool:
        """Yes: a crop leaves no trace."""
        return True


class MesascopeForCausalLM(PreTrainedModel, GenerationMixin):
    """A `LanguageModel`, which is its ``model``, as transformers has them.

    It is saved, loaded, trained and sampled from as theirs are: `save_pretrained`, `from_pretrained`, `Trainer`,
    `generate` with a cache of states, by beams and with an assistant. Importing this module makes it known to
    ``AutoModelForCausalLM``.

    >>> from mesascope.language import layered
    >>> model = MesascopeForCausalLM(MesascopeConfig(layered("softmax, mesa", 257, 64, width=32)))
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
        self.model = config.build_config().build()
        self.post_init()

    @classmethod
    def of(cls, model: LanguageModel, **kwargs: Any) -> MesascopeForCausalLM:
        """The same network, whose weights are shared.

        Args:
            model: that a training left, say.
            **kwargs: of its `MesascopeConfig`, such as ``eos_token_id``.
        """
        require_instance("model", model, LanguageModel)
        with torch.device("meta"):
            made = cls(MesascopeConfig(model.config, **kwargs))
        made.model = model
        return made.train(model.training)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Int[Tensor, "batch t"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        position_ids: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of what follows each token, and the loss where labels are given.

        A row may hold several documents, as ``DataCollatorWithFlattening`` of transformers packs them: the network
        reads each by itself, padded to the longest, and none sees another.

        Args:
            input_ids: tokens ``(batch, t)``; with a cache, those after what it has read.
            attention_mask: 0 for padding before the first token, of all tokens read or of the new ones; without a cache
                also after the last.
            past_key_values: what an earlier call returned, or an empty `StateCache`.
            labels: tokens to predict, those at the same place as in ``input_ids``; -100 counts for nothing, and nor
                does a document's first token. In training, of more tokens than `LanguageModel.at_once`, the loss is
                computed by blocks and ``logits`` is None.
            use_cache: whether to return a cache.
            logits_to_keep: how many of the last tokens are answered, 0 for all, or the places of those that are.
            output_hidden_states: whether to return the tokens before the first layer and after each,
                ``(batch, t, width)``, before the norm that logits are made with.
            output_attentions: refused, as few layers compute such a matrix: see `LanguageModel.run_with_cache`.
            position_ids: number of tokens before each in its document, which begins at 0.
            seq_idx: number of each token's document.
            cu_seq_lens_q: where documents begin and where the last ends, in the rows laid end to end.
            cu_seq_lens_k: the same.
            max_length_q: length of the longest document; it changes nothing.
            max_length_k: the same.
            num_items_in_batch: number by which `Trainer` divides the loss.
            **others: refused unless None or False.
        """
        self._refuse(output_attentions, others)
        if not isinstance(input_ids, Tensor) or input_ids.ndim != 2:
            given = tuple(input_ids.shape) if isinstance(input_ids, Tensor) else input_ids
            refuse("input_ids", "have shape (batch, t)", given, "pass numbers of tokens")
        input_ids = input_ids.long() if input_ids.dtype == torch.int32 else input_ids
        if past_key_values is not None and not isinstance(past_key_values, StateCache):
            kind = type(past_key_values).__name__
            refuse("past_key_values", "be a StateCache", kind, "pass what an earlier call returned, or StateCache()")
        cache = StateCache() if use_cache and past_key_values is None else past_key_values
        count, read = input_ids.shape[-1], 0 if cache is None else cache.get_seq_length()
        mask = padding_mask(attention_mask, count, count + read)
        real = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask[:, -count:]
        starts = document_starts(
            real, cache.counts if cache is not None and read else None, position_ids, seq_idx,
            cu_seq_lens_q=cu_seq_lens_q, cu_seq_lens_k=cu_seq_lens_k,
        )  # fmt: skip
        last = None if isinstance(logits_to_keep, Tensor) else logits_to_keep or None
        if labels is not None and (last is not None or isinstance(logits_to_keep, Tensor)):
            refuse("logits_to_keep", "be 0 where labels are given", logits_to_keep, "leave one of them out")
        kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-(last or 0), None)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        names = ["embedded", *(f"layers.{index}" for index in range(self.config.num_hidden_layers))]
        told = None if labels is None else self._told(labels, starts, real)
        # Logits of all tokens would take many times the memory of the rest.
        by_blocks = self.training and told is not None and cache is None and real.numel() > self.model.at_once
        targets = functional.pad(told, (0, 1), value=-100)[:, 1:] if by_blocks and told is not None else None
        with self.model.cached(names) if output_hidden_states else contextlib.nullcontext({}) as held:
            kept_alone = None if output_hidden_states else last
            found, whole = self._logits(input_ids, real, starts, mask, cache, kept_alone, targets)
        loss, logits = None, None
        if targets is not None:
            loss = found.sum() / ((targets != -100).sum() if num_items_in_batch is None else num_items_in_batch)
        else:
            logits = found[:, kept]
            if told is not None:
                loss = self.loss_function(
                    logits=found, labels=told, vocab_size=self.config.vocab_size, num_items_in_batch=num_items_in_batch
                )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,  # type: ignore[arg-type]
            past_key_values=cache,  # type: ignore[arg-type]
            # After a crop the cache may have read tokens again before these.
            hidden_states=tuple(whole(own)[:, -count:] for own in held.values()) or None,
        )

    def _logits(
        self, tokens: Tensor, real: Tensor, starts: Tensor, mask: Tensor | None, cache: StateCache | None,
        last: int | None, targets: Tensor | None,
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:  # fmt: skip
        """Logits of the last tokens or of all, and how to lay out what layers gave as the rows are.

        With targets, the loss of each in place of logits, laid out as the network reads them.
        """
        several = starts.sum(-1) if cache is None else starts.sum(-1) + (cache.counts > 0)
        if bool((several > 1).any()):
            if cache is not None:
                rule = "be left out where a row holds several documents"
                refuse("use_cache", rule, True, "pass each document in a row of its own")
            rows = Packed(starts, real)
            if targets is not None:
                return self.model(rows.parted(tokens), targets=rows.parted(targets, -100)), rows.joined
            return rows.joined(self.model(rows.parted(tokens))), rows.joined
        if cache is not None:
            return cache.read(self.model, tokens, mask, last), _same
        # No token sees what follows it: padding on the right needs no mask.
        seen = real.cummax(-1).values
        seen = None if bool(seen.all()) else seen
        return self.model(tokens, None, seen, last if targets is None else None, targets), _same

    def _told(self, labels: Tensor, starts: Tensor, real: Tensor) -> Tensor:
        """Labels that count: nothing is predicted from padding, nor a document's first token from another."""
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.shape != real.shape:
            given = (tuple(labels.shape), labels.dtype) if isinstance(labels, Tensor) else labels
            refuse("labels", f"be whole numbers of shape {tuple(real.shape)}", given, "pass input_ids, say")
        after_padding = torch.cat([torch.zeros_like(real[:, :1]), ~real[:, :-1]], -1)
        told = labels.long().masked_fill(starts | after_padding, -100)
        if not self.training or told.device.type == "cpu":
            require_tokens("labels", told[told != -100], self.config.vocab_size)
        return told

    def _refuse(self, output_attentions: bool | None, others: Mapping[str, Any]) -> None:
        """Refuse keywords that would change what is computed."""
        if self.config.output_attentions if output_attentions is None else output_attentions:
            refuse("output_attentions", "be False", True, "ask model.run_with_cache for layers.*.attention.pattern")
        for name, value in others.items():
            if value is not None and value is not False:
                refuse(name, "be left out, as the model has no such input", value, "pass input_ids and attention_mask")

    def get_output_embeddings(self) -> nn.Module | None:
        """The module that makes logits; None where they are products with the input embeddings."""
        return self.model.logits

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Put a module with weights of the same shape in the place of the input embeddings."""
        self.model.embedding = self._fitting(value)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Put a module with weights of the same shape in the place of the one that makes logits."""
        if self.model.logits is None:
            refuse("new_embeddings", "be left out where logits are products with the input embeddings", "a module",
                   "call set_input_embeddings")  # fmt: skip
        self.model.logits = self._fitting(new_embeddings)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Module:
        """The input embeddings, whose number cannot change."""
        size = self.config.vocab_size
        if new_num_tokens not in (None, size) or args or any(kwargs.values()):
            refuse("new_num_tokens", f"be {size}, the vocabulary that the network was built with", new_num_tokens,
                   "build a network with another vocabulary")  # fmt: skip
        return self.get_input_embeddings()

    def _fitting(self, module: nn.Module) -> Any:
        shape, own = (self.config.vocab_size, self.config.hidden_size), getattr(module, "weight", None)
        if not isinstance(own, Tensor) or own.shape != shape:
            refuse("the module", f"have weights of shape {shape}", None if own is None else tuple(own.shape),
                   "build a network with another vocabulary")  # fmt: skip
        return module

    def prepare_inputs_for_generation(self, *args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        """As transformers asks for it, with a cache of states in place of the empty one that it begins with."""
        if past_key_values is not None and not isinstance(past_key_values, StateCache):
            if past_key_values.get_seq_length():
                refuse("past_key_values", "be a StateCache", type(past_key_values).__name__, "pass none to begin with")
            past_key_values = StateCache()
        base: Any = super()
        return base.prepare_inputs_for_generation(*args, past_key_values=past_key_values, **kwargs)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As transformers has it, but that a folder without all of the weights is refused.

        Parameters that should not decay are marked for `mesascope.training`, as in a network that was built;
        transformers' `Trainer` knows no such marks, and leaves out biases and norms alone.
        """
        loaded: Any = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        model, found = loaded
        lost = sorted({*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])})
        if lost:
            refuse("the folder", f"hold all weights of the network, {lost[0]} among them", "others", "pass another")
        with torch.device("meta"):
            built = model.config.build_config().build()
        mark_undecayed(model.model, undecayed(built))
        return (model, found) if output_loading_info else model

    def _init_weights(self, module: nn.Module) -> None:
        """Weights are those that the network was built with, or those of a folder, which must hold all."""


def _same(values: Tensor) -> Tensor:
    return values


AutoConfig.register(MesascopeConfig.model_type, MesascopeConfig, exist_ok=True)
AutoModelForCausalLM.register(MesascopeConfig, MesascopeForCausalLM, exist_ok=True)
