"""llama-server's command line for xllamacpp: one table from options to the fields of its CommonParams.

Names, values and checks are those of llama-server b11434, with two differences: `--name=value` is taken, and a number
with anything behind it is refused. Runs in the engine's process, on the standard library and xllamacpp alone.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

LOWEST, HIGHEST = -(2**31), 2**31 - 1

ON, OFF, AUTO = (
    frozenset({"on", "enabled", "true", "1"}),
    frozenset({"off", "disabled", "false", "0"}),
    frozenset({"auto", "-1"}),
)

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

EXPERTS, FEED_FORWARD = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", r"\.ffn_(up|down|gate)\."
"""The tensors of a layer that `--cpu-moe` and similar options keep in the CPU's memory."""

SAMPLERS = {
    "d": "dry",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "s": "top_n_sigma",
    "m": "min_p",
    "t": "temperature",
    "x": "xtc",
    "i": "infill",
    "e": "penalties",
    "a": "adaptive_p",
}
"""The letters of `--sampler-seq`."""

SPECULATION = (
    *("none", "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"),
    *("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"),
)


class OptionError(ValueError):
    """An option that can't be taken; the message names it and says why."""


class Option(NamedTuple):
    """names: those that take values, or that say yes. off: those that say no.

    values: how many follow a name. put: writes them into CommonParams; if none follow, whether the name says yes.
    """

    names: tuple[str, ...]
    put: Callable[..., None]
    values: int = 1
    off: tuple[str, ...] = ()


def apply(params: Any, argv: Sequence[str]) -> frozenset[str]:
    """Writes a command line into `params`, an xllamacpp.CommonParams; the first name of each option that it had.

    Raises OptionError for an option that isn't known or taken, and for a value that llama-server would refuse.
    """
    given = set()
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name.startswith("--"):
            name = name.replace("_", "-")
        option, on = _found(name)
        given.add(option.names[0])
        values = _values(name, option, [value] if equals else [], words)
        arguments: list[Any] = [*values] if option.values else [on]
        try:
            option.put(params, *arguments)
        except (ValueError, OverflowError, OSError) as error:
            raise OptionError(f"{' '.join([name, *values])}: {error}") from error
    _complete(params)
    return frozenset(given)


def _found(name: str) -> tuple[Option, bool]:
    """The option of this name, and whether the name says yes."""
    for option in TABLE:
        if name in option.names or name in option.off:
            return option, name in option.names
    for names, reason in LEFT_OUT.items():
        if name in names.split():
            raise OptionError(f"{name}: {reason}")
    known = [name for option in TABLE for name in (*option.names, *option.off)]
    near = get_close_matches(name, known, 1)
    raise OptionError(f"unknown option {name}" + (f"; did you mean {near[0]}?" if near else ""))


def _values(name: str, option: Option, values: list[str], words: Iterator[str]) -> list[str]:
    while len(values) < option.values:
        word = next(words, None)
        if word is None:
            raise OptionError(f"{name}: a value must follow")
        values.append(word)
    if len(values) > option.values:
        raise OptionError(f"{name}: takes no value")
    return values


def _complete(params: Any) -> None:
    """Derives what depends on several options, as llama-server does after it has read them all."""
    draft = params.speculative.draft
    for own, other in (
        (params.cpuparams_batch, params.cpuparams),
        (draft.cpuparams, params.cpuparams),
        (draft.cpuparams_batch, params.cpuparams_batch),
    ):
        if own.n_threads < 0:
            for field in ("n_threads", "cpumask", "mask_valid", "priority", "strict_cpu", "poll"):
                setattr(own, field, getattr(other, field))
    if params.kv_unified_per_slot > 0 and params.n_ctx == 0 and params.fit_params_min_ctx >= 0:
        params.n_ctx = params.kv_unified_per_slot * (params.n_parallel if params.n_parallel > 0 else 4)
    if params.escape:
        params.antiprompt = [_unescaped(text) for text in params.antiprompt]


def _unescaped(text: str) -> str:
    plain = {"n": "\n", "r": "\r", "t": "\t"}
    return re.sub(
        r"""\\(?:x([0-9a-fA-F]{2})|([nrt'"\\]))""",
        lambda found: chr(int(found[1], 16)) if found[1] else plain.get(found[2], found[2]),
        text,
    )


# Values


def _whole(text: str, low: int = LOWEST, high: int = HIGHEST) -> int:
    if not re.fullmatch("[+-]?[0-9]+", text.strip()):
        raise ValueError("must be a whole number")
    number = int(text)
    if number < low:
        raise ValueError(f"must be at least {low}")
    if number > high:
        raise ValueError(f"must be at most {high}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def _finite(text: str) -> float:
    number = _number(text)
    if not math.isfinite(number):
        raise ValueError("must be finite")
    return number


def _truth(text: str, *, auto: bool = True) -> bool | None:
    """Yes, no, or None: the engine decides."""
    if text in ON:
        return True
    if text in OFF:
        return False
    if auto and text in AUTO:
        return None
    raise ValueError("must be on, off or auto" if auto else "must be on or off")


def _row(text: str) -> list[str]:
    """The fields between commas; a field in double quotes may hold commas."""
    fields = re.findall(r'(?:^|,)("(?:[^"]|"")*"|[^,]*)', text)
    return [field[1:-1].replace('""', '"') if len(field) > 1 and field[0] == '"' else field for field in fields]


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",")} - {""}


def _scaled(text: str) -> tuple[str, float]:
    path, colon, scale = text.partition(":")
    if not colon or ":" in scale:
        raise ValueError("must be FILE:SCALE")
    return path, _number(scale)


def _folder(text: str) -> str:
    """With its last slash: llama.cpp joins this and a file's name without one between."""
    if not Path(text).is_dir():
        raise ValueError("is not a folder")
    return text if text.endswith(os.sep) else text + os.sep


def _file(text: str) -> str:
    return Path(text).read_text("utf-8")


# Fields


def _owner(params: Any, path: str) -> tuple[Any, str]:
    *owners, name = path.split(".")
    for owner in owners:
        params = getattr(params, owner)
    return params, name


def _get(params: Any, path: str) -> Any:
    return getattr(*_owner(params, path))


def _set(params: Any, path: str, value: Any) -> None:
    setattr(*_owner(params, path), value)


def _add(params: Any, path: str, values: list[Any]) -> None:
    _set(params, path, [*_get(params, path), *values])


def _member(kind: type, suffix: str) -> Any:
    """Of an enum that is named as its members begin, such as `ggml_type` with `GGML_TYPE_F16`."""
    return getattr(kind, f"{kind.__name__.upper()}_{suffix}")


def _chosen(params: Any, name: str) -> None:
    """Otherwise what the model's file recommends for this takes its place."""
    import xllamacpp

    params.sampling.user_sampling_config |= int(_member(xllamacpp.common_params_sampling_config, name))


# Kinds of options


def flag(names: str, path: str, off: str = "", *, negated: str = "") -> Option:
    """A switch; `negated` are fields that say the opposite."""

    def put(params: Any, on: bool) -> None:
        for field in path.split():
            _set(params, field, on)
        for field in negated.split():
            _set(params, field, not on)

    return Option(tuple(names.split()), put, 0, tuple(off.split()))


def read(names: str, path: str, reader: Callable[[str], Any], chosen: str = "") -> Option:
    """One value for the fields of `path`."""

    def put(params: Any, text: str) -> None:
        value = reader(text)
        for field in path.split():
            _set(params, field, value)
        if chosen:
            _chosen(params, chosen)

    return Option(tuple(names.split()), put)


def whole(names: str, path: str, low: int = LOWEST, high: int = HIGHEST, chosen: str = "") -> Option:
    return read(names, path, lambda text: _whole(text, low, high), chosen)


def number(names: str, path: str, chosen: str = "") -> Option:
    return read(names, path, _number, chosen)


def text(names: str, path: str) -> Option:
    return read(names, path, str)


def choice(names: str, path: str, words: Mapping[str, str] | Sequence[str]) -> Option:
    """One of `words`, each with the last part of its enum's member."""
    members = words if isinstance(words, Mapping) else {word: word.upper() for word in words}

    def put(params: Any, text: str) -> None:
        if text not in members:
            raise ValueError(f"must be one of {', '.join(filter(None, members))}")
        _set(params, path, _member(type(_get(params, path)), members[text]))

    return Option(tuple(names.split()), put)


def own(names: str, put: Callable[..., None], values: int = 1, off: str = "") -> Option:
    return Option(tuple(names.split()), put, values, tuple(off.split()))


def threads(names: str, path: str) -> Option:
    return read(names, f"{path}.n_threads", lambda text: count if (count := _whole(text)) > 0 else os.cpu_count() or 1)


def priority(names: str, path: str, low: int = 0) -> Option:
    def put(params: Any, text: str) -> None:
        value = _whole(text, low, 3)
        _set(params, f"{path}.priority", type(_get(params, f"{path}.priority"))(value))

    return own(names, put)


def strict(names: str, path: str) -> Option:
    return read(names, f"{path}.strict_cpu", lambda text: bool(_whole(text, 0)))


def cpus(names: str, path: str, bits: Callable[[str, int], int]) -> Option:
    """The processors of `bits`, a mask, beside those that another option named."""

    def put(params: Any, text: str) -> None:
        mask = _get(params, f"{path}.cpumask")
        value = bits(text, len(mask))
        _set(params, f"{path}.cpumask", [had or bool(value >> place & 1) for place, had in enumerate(mask)])
        _set(params, f"{path}.mask_valid", True)

    return own(names, put)


def mask_bits(text: str, _maximum: int) -> int:
    digits = text.removeprefix("0x")[:128]
    if digits and not re.fullmatch("[0-9a-fA-F]+", digits):
        raise ValueError("must be a hexadecimal number")
    return int(digits or "0", 16)


def range_bits(text: str, maximum: int) -> int:
    found = re.fullmatch(r"(\d*)-(\d*)", text)
    if found is None:
        raise ValueError("must be FIRST-LAST")
    first, last = int(found[1] or 0), int(found[2] or maximum - 1)
    if first >= maximum or last >= maximum:
        raise ValueError(f"must be below {maximum}")
    return sum(1 << place for place in range(first, last + 1))


def layers(names: str, path: str) -> Option:
    return read(names, path, lambda text: {"auto": -1, "all": -2}[text] if text in {"auto", "all"} else _whole(text))


def places(names: str, path: str, overrides: Callable[[str], str], values: int = 1) -> Option:
    """Where tensors are kept, as `pattern=buffer,...`, after what other options say."""

    def put(params: Any, value: Any) -> None:
        _set(params, path, ",".join(filter(None, [_get(params, path), overrides(value)])))

    return own(names, put, values)


def first_layers(tensors: str) -> Callable[[str], str]:
    return lambda text: ",".join(rf"blk\.{layer}{tensors}=CPU" for layer in range(_whole(text, 0, 10_000)))


def adapters(names: str, scaled: bool) -> Option:
    def put(params: Any, text: str) -> None:
        import xllamacpp

        new = [_scaled(item) if scaled else (item, 1.0) for item in _row(text)]
        # Those that are set already belong to the list that this replaces.
        had = [(adapter.path, adapter.scale) for adapter in params.lora_adapters]
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, scale) for path, scale in [*had, *new]]

    return own(names, put)


def grammar(names: str, read_text: Callable[[str], str], *, schema: bool) -> Option:
    def put(params: Any, text: str) -> None:
        import xllamacpp

        content = read_text(text)
        if schema:
            json.loads(content)
            content = xllamacpp.json_schema_to_grammar(content)
        kind = _member(xllamacpp.common_grammar_type, "OUTPUT_FORMAT" if schema else "USER")
        params.sampling.grammar = xllamacpp.CommonGrammar(kind, content)

    return own(names, put)


# Options that write in a way of their own


def _context(params: Any, text: str) -> None:
    params.n_ctx = _whole(text)
    if params.n_ctx == 0:
        # An explicit request for all of the model's context is honoured, even if it doesn't fit.
        params.fit_params_min_ctx = -1


def _parallel(params: Any, text: str) -> None:
    if (slots := _whole(text)) == 0:
        raise ValueError("must not be 0")
    params.n_parallel = slots


def _flash_attention(params: Any, text: str) -> None:
    word = {True: "ENABLED", False: "DISABLED", None: "AUTO"}[_truth(text)]
    params.flash_attn_type = _member(type(params.flash_attn_type), word)


def _tensor_split(params: Any, text: str) -> None:
    shares = [_number(share) for share in re.split("[,/]+", text)]
    maximum = len(params.tensor_split)
    if len(shares) >= maximum:
        raise ValueError(f"must be fewer than {maximum} numbers")
    params.tensor_split = shares + [0.0] * (maximum - len(shares))


def _fit_target(params: Any, text: str) -> None:
    had = params.fit_params_target
    margins = [_whole(margin, 0) * 1024 * 1024 for margin in re.split("[,/]+", text)]
    if len(margins) > len(had):
        raise ValueError(f"must be at most {len(had)} numbers")
    params.fit_params_target = margins * len(had) if len(margins) == 1 else margins + had[len(margins) :]


def _repeat_last(params: Any, text: str) -> None:
    sampling = params.sampling
    sampling.penalty_last_n = _whole(text, 0)
    sampling.n_prev = max(sampling.n_prev, sampling.penalty_last_n)
    _chosen(params, "PENALTY_LAST_N")


def _repeat_penalty(params: Any, text: str) -> None:
    penalty = _finite(text)
    if penalty <= 0:
        raise ValueError("must be above 0")
    params.sampling.penalty_repeat = penalty
    _chosen(params, "PENALTY_REPEAT")


def _dry_base(params: Any, text: str) -> None:
    if (base := _number(text)) >= 1:  # llama-server keeps its own otherwise
        params.sampling.dry_base = base


def _samplers(params: Any, text: str) -> None:
    params.sampling.samplers = text
    _chosen(params, "SAMPLERS")


def _sampler_letters(params: Any, text: str) -> None:
    unknown = [letter for letter in text if letter not in SAMPLERS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a sampler's letter")
    params.sampling.samplers = ";".join(SAMPLERS[letter] for letter in text)


def _rope_scale(params: Any, text: str) -> None:
    if (scale := _number(text)) == 0:
        raise ValueError("must not be 0")
    params.rope_freq_scale = 1 / scale


def _speculation(params: Any, text: str) -> None:
    import xllamacpp

    words = text.split(",")
    for word in words:
        if word not in SPECULATION:
            raise ValueError(f"{word!r} is not one of: {', '.join(SPECULATION)}")
    kind = xllamacpp.common_speculative_type
    _add(params, "speculative.types", [_member(kind, word.upper().replace("-", "_")) for word in words])


def _speculation_default(params: Any, _on: bool) -> None:
    _speculation(params, "ngram-mod")
    found = params.speculative.ngram_mod
    found.n_match, found.n_min, found.n_max = 24, 48, 64


def _synthetic_length(params: Any, text: str) -> None:
    if (length := _number(text)) == -1:
        raise ValueError("must not be -1")
    params.speculative.synth_len = length


def _draft_sampling(params: Any, text: str) -> None:
    if text not in {"greedy", "probabilistic"}:
        raise ValueError("must be one of greedy, probabilistic")
    params.speculative.draft.probabilistic = text == "probabilistic"


def _projector_device(params: Any, text: str) -> None:
    params.mmproj_device = text
    params.mmproj_use_gpu = text != "none"


def _hosts(params: Any, text: str) -> None:
    hosts = [host for host in (part.strip() for part in _row(text)) if host]
    if not hosts:
        raise ValueError("must be at least one address")
    params.hostnames = hosts


def _keys(params: Any, text: str) -> None:
    _add(params, "api_keys", [key for key in _row(text) if key])


def _key_file(params: Any, text: str) -> None:
    _add(params, "api_keys", [line for line in _file(text).splitlines() if line and not line.startswith("#")])


def _origins(params: Any, text: str) -> None:
    params.cors_origins = text
    params.cors_origins_explicit = True


def _reranking(params: Any, _on: bool) -> None:
    params.embedding = True
    params.pooling_type = _member(type(params.pooling_type), "RANK")


def _template_arguments(params: Any, arguments: Mapping[str, Any]) -> None:
    encoded = {name: json.dumps(value, ensure_ascii=False) for name, value in arguments.items()}
    params.default_template_kwargs = {**params.default_template_kwargs, **encoded}


def _template_json(params: Any, text: str) -> None:
    arguments = json.loads(text)
    if not isinstance(arguments, dict):
        raise ValueError("must be a JSON object")
    _template_arguments(params, arguments)


def _reasoning(params: Any, text: str) -> None:
    wanted = _truth(text)
    params.enable_reasoning = -1 if wanted is None else int(wanted)
    if wanted is not None:
        _template_arguments(params, {"enable_thinking": wanted})


def _reasoning_effort(params: Any, text: str) -> None:
    if text == "default":
        had = params.default_template_kwargs
        params.default_template_kwargs = {name: had[name] for name in had if name != "reasoning_effort"}
    else:
        _template_arguments(params, {"reasoning_effort": text})


def _reasoning_preserve(params: Any, on: bool) -> None:
    _template_arguments(params, {"preserve_reasoning": on})
    params.preserve_reasoning_specified = True


def _prompt_log(params: Any, text: str) -> None:
    Path(text).mkdir(parents=True, exist_ok=True)
    params.path_prompts_log_dir = text


def _sleep(params: Any, text: str) -> None:
    if (seconds := _whole(text, -1)) == 0:
        raise ValueError("must not be 0")
    params.sleep_idle_seconds = seconds


def _ignored(_params: Any, _text: str) -> None:
    """llama-server reads and ignores it too."""


def _help(_params: Any, _on: bool) -> None:
    for option in TABLE:
        sys.stdout.write(", ".join([*option.names, *option.off]) + (" VALUE" * option.values) + "\n")
    sys.exit()


# The table, in the order of `llama-server --help`

_CPU = (
    threads("-t --threads", "cpuparams"),
    threads("-tb --threads-batch", "cpuparams_batch"),
    cpus("-C --cpu-mask", "cpuparams", mask_bits),
    cpus("-Cr --cpu-range", "cpuparams", range_bits),
    strict("--cpu-strict", "cpuparams"),
    priority("--prio", "cpuparams", -1),
    whole("--poll", "cpuparams.poll", 0),
    cpus("-Cb --cpu-mask-batch", "cpuparams_batch", mask_bits),
    cpus("-Crb --cpu-range-batch", "cpuparams_batch", range_bits),
    strict("--cpu-strict-batch", "cpuparams_batch"),
    priority("--prio-batch", "cpuparams_batch"),
    whole("--poll-batch", "cpuparams_batch.poll", 0),
)

_MODEL = (
    own("-c --ctx-size", _context),
    whole("-n --predict --n-predict", "n_predict"),
    whole("-b --batch-size", "n_batch"),
    whole("-ub --ubatch-size", "n_ubatch"),
    whole("--keep", "n_keep"),
    flag("--swa-full", "swa_full"),
    own("-fa --flash-attn", _flash_attention),
    flag("--perf", "", "--no-perf", negated="no_perf sampling.no_perf"),
    flag("-e --escape", "escape", "--no-escape"),
    choice("--rope-scaling", "rope_scaling_type", ("none", "linear", "yarn")),
    own("--rope-scale", _rope_scale),
    number("--rope-freq-base", "rope_freq_base"),
    number("--rope-freq-scale", "rope_freq_scale"),
    whole("--yarn-orig-ctx", "yarn_orig_ctx"),
    number("--yarn-ext-factor", "yarn_ext_factor"),
    number("--yarn-attn-factor", "yarn_attn_factor"),
    number("--yarn-beta-slow", "yarn_beta_slow"),
    number("--yarn-beta-fast", "yarn_beta_fast"),
    flag("-kvo --kv-offload", "", "-nkvo --no-kv-offload", negated="no_kv_offload"),
    flag("--repack", "", "-nr --no-repack", negated="no_extra_bufts"),
    flag("--no-host", "no_host"),
    choice("-ctk --cache-type-k", "cache_type_k", CACHE_TYPES),
    choice("-ctv --cache-type-v", "cache_type_v", CACHE_TYPES),
    own("-dt --defrag-thold", _ignored),
    choice(
        "-lm --load-mode",
        "load_mode",
        {
            "auto": "AUTO",
            "none": "NONE",
            "mmap": "MMAP",
            "mlock": "MLOCK",
            "mmap+mlock": "MMAP_MLOCK",
            "dio": "DIRECT_IO",
        },
    ),
    choice("-lzm --lazy-mode", "lazy_mode", ("on", "auto", "off")),
    choice(
        "--numa", "numa", {"distribute": "DISTRIBUTE", "": "DISTRIBUTE", "isolate": "ISOLATE", "numactl": "NUMACTL"}
    ),
    places("-ot --override-tensor", "tensor_buft_overrides", str),
    places("-cmoe --cpu-moe", "tensor_buft_overrides", lambda _on: f"{EXPERTS}=CPU", 0),
    places("-ncmoe --n-cpu-moe", "tensor_buft_overrides", first_layers(EXPERTS)),
    places("-ncffn --n-cpu-ffn", "tensor_buft_overrides", first_layers(FEED_FORWARD)),
    layers("-ngl --gpu-layers --n-gpu-layers", "n_gpu_layers"),
    choice("-sm --split-mode", "split_mode", ("none", "layer", "row", "tensor")),
    own("-ts --tensor-split", _tensor_split),
    whole("-mg --main-gpu", "main_gpu"),
    read("-fit --fit", "fit_params", lambda text: _truth(text, auto=False)),
    own("-fitt --fit-target", _fit_target),
    whole("-fitc --fit-ctx", "fit_params_min_ctx"),
    flag("--check-tensors", "check_tensors"),
    flag("--op-offload", "", "--no-op-offload", negated="no_op_offload"),
    adapters("--lora", scaled=False),
    adapters("--lora-scaled", scaled=True),
    text("-m --model", "model.path"),
    flag("--offline", "offline"),
    own("-v --verbose --log-verbose", lambda params, _on: _set(params, "verbosity", HIGHEST), 0),
    whole("-lv --verbosity --log-verbosity", "verbosity"),
    choice("--spec-draft-type-k -ctkd --cache-type-k-draft", "speculative.draft.cache_type_k", CACHE_TYPES),
    choice("--spec-draft-type-v -ctvd --cache-type-v-draft", "speculative.draft.cache_type_v", CACHE_TYPES),
)

_SAMPLING = (
    own("--samplers", _samplers),
    read("-s --seed", "sampling.seed", lambda text: _whole(text, -(2**63), 2**64 - 1) % 2**32),
    own("--sampler-seq --sampling-seq", _sampler_letters),
    flag("--ignore-eos", "sampling.ignore_eos"),
    read("--temp --temperature", "sampling.temp", lambda text: max(_number(text), 0.0), "TEMP"),
    whole("--top-k", "sampling.top_k", chosen="TOP_K"),
    number("--top-p", "sampling.top_p", "TOP_P"),
    number("--min-p", "sampling.min_p", "MIN_P"),
    number("--xtc-probability", "sampling.xtc_probability", "XTC_PROBABILITY"),
    number("--xtc-threshold", "sampling.xtc_threshold", "XTC_THRESHOLD"),
    number("--typical --typical-p", "sampling.typ_p"),
    own("--repeat-last-n", _repeat_last),
    own("--repeat-penalty", _repeat_penalty),
    read("--presence-penalty", "sampling.penalty_present", _finite),
    read("--frequency-penalty", "sampling.penalty_freq", _finite),
    number("--dry-multiplier", "sampling.dry_multiplier"),
    own("--dry-base", _dry_base),
    whole("--dry-allowed-length", "sampling.dry_allowed_length"),
    whole("--dry-penalty-last-n", "sampling.dry_penalty_last_n", 0),
    number("--adaptive-target", "sampling.adaptive_target"),
    number("--adaptive-decay", "sampling.adaptive_decay"),
    number("--dynatemp-range", "sampling.dynatemp_range"),
    number("--dynatemp-exp", "sampling.dynatemp_exponent"),
    whole("--mirostat", "sampling.mirostat", chosen="MIROSTAT"),
    number("--mirostat-lr", "sampling.mirostat_eta", "MIROSTAT_ETA"),
    number("--mirostat-ent", "sampling.mirostat_tau", "MIROSTAT_TAU"),
    grammar("--grammar", str, schema=False),
    grammar("--grammar-file", _file, schema=False),
    grammar("-j --json-schema", str, schema=True),
    grammar("-jf --json-schema-file", _file, schema=True),
    flag("-bs --backend-sampling", "sampling.backend_sampling"),
)

_DRAFT = (
    threads("--spec-draft-threads -td --threads-draft", "speculative.draft.cpuparams"),
    threads("--spec-draft-threads-batch -tbd --threads-batch-draft", "speculative.draft.cpuparams_batch"),
    cpus("--spec-draft-cpu-mask -Cd --cpu-mask-draft", "speculative.draft.cpuparams", mask_bits),
    cpus("--spec-draft-cpu-range -Crd --cpu-range-draft", "speculative.draft.cpuparams", range_bits),
    strict("--spec-draft-cpu-strict --cpu-strict-draft", "speculative.draft.cpuparams"),
    priority("--spec-draft-prio --prio-draft", "speculative.draft.cpuparams"),
    whole("--spec-draft-poll --poll-draft", "speculative.draft.cpuparams.poll", 0),
    cpus("--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft", "speculative.draft.cpuparams_batch", mask_bits),
    strict("--spec-draft-cpu-strict-batch --cpu-strict-batch-draft", "speculative.draft.cpuparams_batch"),
    priority("--spec-draft-prio-batch --prio-batch-draft", "speculative.draft.cpuparams_batch"),
    whole("--spec-draft-poll-batch --poll-batch-draft", "speculative.draft.cpuparams_batch.poll", 0),
    places("--spec-draft-override-tensor -otd --override-tensor-draft", "speculative.draft.tensor_buft_overrides", str),
    places(
        "--spec-draft-cpu-moe -cmoed --cpu-moe-draft",
        "speculative.draft.tensor_buft_overrides",
        lambda _on: f"{EXPERTS}=CPU",
        0,
    ),
    places(
        "--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft",
        "speculative.draft.tensor_buft_overrides",
        first_layers(EXPERTS),
    ),
    whole("--spec-draft-n-max", "speculative.draft.n_max", 0),
    whole("--spec-draft-n-min", "speculative.draft.n_min"),
    own("--spec-synth-len", _synthetic_length),
    read("--spec-synth-rates", "speculative.synth_rates", lambda text: [_number(rate) for rate in text.split(",")]),
    number("--spec-draft-p-split --draft-p-split", "speculative.draft.p_split"),
    number("--spec-draft-p-min --draft-p-min", "speculative.draft.p_min"),
    flag("--spec-draft-backend-sampling", "speculative.draft.backend_sampling", "--no-spec-draft-backend-sampling"),
    own("--spec-draft-sampling", _draft_sampling),
    text("--spec-draft-device -devd --device-draft", "speculative.draft.devices"),
    layers("--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft", "speculative.draft.n_gpu_layers"),
    text("--spec-draft-model -md --model-draft", "speculative.draft.mparams.path speculative.draft.mparams.hf_file"),
    own("--spec-type", _speculation),
    own("--spec-default", _speculation_default, 0),
    whole("--spec-ngram-mod-n-min", "speculative.ngram_mod.n_min", 0, 1024),
    whole("--spec-ngram-mod-n-max", "speculative.ngram_mod.n_max", 0, 1024),
    whole("--spec-ngram-mod-n-match", "speculative.ngram_mod.n_match", 1, 1024),
    whole("--spec-ngram-simple-size-n", "speculative.ngram_simple.size_n", 1, 1024),
    whole("--spec-ngram-simple-size-m", "speculative.ngram_simple.size_m", 1, 1024),
    whole("--spec-ngram-simple-min-hits", "speculative.ngram_simple.min_hits", 1),
    whole("--spec-ngram-map-k-size-n", "speculative.ngram_map_k.size_n", 1, 1024),
    whole("--spec-ngram-map-k-size-m", "speculative.ngram_map_k.size_m", 1, 1024),
    whole("--spec-ngram-map-k-min-hits", "speculative.ngram_map_k.min_hits", 1),
    whole("--spec-ngram-map-k4v-size-n", "speculative.ngram_map_k4v.size_n", 1, 1024),
    whole("--spec-ngram-map-k4v-size-m", "speculative.ngram_map_k4v.size_m", 1, 1024),
    whole("--spec-ngram-map-k4v-min-hits", "speculative.ngram_map_k4v.min_hits", 1),
    text("-lcs --lookup-cache-static", "speculative.ngram_cache.lookup_cache_static"),
    text("-lcd --lookup-cache-dynamic", "speculative.ngram_cache.lookup_cache_dynamic"),
)

_SERVER = (
    own("-h --help --usage", _help, 0),
    whole("--kv-unified-per-slot", "kv_unified_per_slot"),
    whole("-ctxcp --ctx-checkpoints --swa-checkpoints", "n_ctx_checkpoints"),
    whole("-cms --checkpoint-min-step", "checkpoint_min_step", 0),
    whole("-cram --cache-ram", "cache_ram_mib"),
    flag("-kvu --kv-unified", "kv_unified", "-no-kvu --no-kv-unified"),
    flag("--cache-idle-slots", "cache_idle_slots", "--no-cache-idle-slots"),
    flag("--context-shift", "ctx_shift", "--no-context-shift"),
    own("-r --reverse-prompt", lambda params, text: _add(params, "antiprompt", [text])),
    flag("-sp --special", "special"),
    flag("--warmup", "warmup", "--no-warmup"),
    choice("--pooling", "pooling_type", ("none", "mean", "cls", "last", "rank")),
    own("-np --parallel", _parallel),
    flag("-cb --cont-batching", "cont_batching", "-nocb --no-cont-batching"),
    text("-mm --mmproj", "mmproj.path"),
    flag("--mmproj-auto", "", "--no-mmproj --no-mmproj-auto", negated="no_mmproj"),
    flag("--mmproj-offload", "mmproj_use_gpu", "--no-mmproj-offload"),
    own("-mmdev --mmproj-device", _projector_device),
    whole("--image-min-tokens", "image_min_tokens"),
    whole("--image-max-tokens", "image_max_tokens"),
    whole("--mtmd-batch-max-tokens", "mtmd_batch_max_tokens"),
    number("--video-fps", "video_fps"),
    whole("--video-timestamp-interval", "video_timestamp_interval_ms"),
    text("--video-ffmpeg-dir", "video_ffmpeg_bin_dir"),
    own("-a --alias", lambda params, text: _set(params, "model_alias", params.model_alias | _names(text))),
    own("--tags", lambda params, text: _set(params, "model_tags", params.model_tags | _names(text))),
    whole("--embd-normalize", "embd_normalize"),
    own("--host", _hosts),
    whole("--port", "port"),
    flag("--reuse-port", "reuse_port"),
    own("--cors-origins", _origins),
    text("--cors-methods", "cors_methods"),
    text("--cors-headers", "cors_headers"),
    flag("--cors-credentials", "cors_credentials", "--no-cors-credentials"),
    flag("--ui --webui", "ui", "--no-ui --no-webui"),
    flag("--embedding --embeddings", "embedding"),
    own("--rerank --reranking", _reranking, 0),
    own("--api-key", _keys),
    own("--api-key-file", _key_file),
    own("--chat-template-kwargs", _template_json),
    whole("-to --timeout", "timeout_read timeout_write"),
    whole("--sse-ping-interval", "sse_ping_interval"),
    whole("--threads-http", "n_threads_http"),
    flag("--cache-prompt", "cache_prompt", "--no-cache-prompt"),
    whole("--cache-reuse", "n_cache_reuse"),
    flag("--metrics", "endpoint_metrics"),
    flag("--props", "endpoint_props"),
    flag("--slots", "endpoint_slots", "--no-slots"),
    read("--slot-save-path", "slot_save_path", _folder),
    read("--media-path", "media_path", _folder),
    flag("--jinja", "use_jinja", "--no-jinja"),
    choice(
        "--reasoning-format",
        "reasoning_format",
        {"none": "NONE", "auto": "AUTO", "deepseek": "DEEPSEEK", "deepseek-legacy": "DEEPSEEK_LEGACY"},
    ),
    own("-rea --reasoning", _reasoning),
    own("--reasoning-effort", _reasoning_effort),
    whole("--reasoning-budget", "sampling.reasoning_budget_tokens", -1),
    text("--reasoning-budget-message", "sampling.reasoning_budget_message"),
    own("--reasoning-preserve", _reasoning_preserve, 0, "--no-reasoning-preserve"),
    text("--chat-template", "chat_template"),
    read("--chat-template-file", "chat_template", _file),
    flag("--skip-chat-parsing", "force_pure_content_parser", "--no-skip-chat-parsing"),
    flag("--prefill-assistant", "prefill_assistant", "--no-prefill-assistant"),
    number("-sps --slot-prompt-similarity", "slot_prompt_similarity"),
    flag("--lora-init-without-apply", "lora_init_without_apply"),
    own("--sleep-idle-seconds", _sleep),
    own("--log-prompts-dir", _prompt_log),
)

TABLE: tuple[Option, ...] = (*_CPU, *_MODEL, *_SAMPLING, *_DRAFT, *_SERVER)


# Of llama-server's options, those that the embedded engine doesn't take

_PRINTS = "prints something and ends; the embedded engine only serves"
_NO_FIELD = "xllamacpp has no field for it"
_PER_REQUEST = f"{_NO_FIELD}; a request may hold it"
_FETCHES = "downloads; the embedded engine opens files that are there"
_ROUTES = "serves several models; that is the gateway's part"
_PAGES = "is for llama-server's own web page; only the gateway asks this server"
_TOOLS = "runs tools within the server; only the gateway asks this server"
_ADDRESS = "changes where and how the server is asked; the gateway asks over HTTP at the root"
_LOGS = f"{_NO_FIELD}; `ctxgate logs` shows the engine's output"
_REMOVED = "llama-server has removed it; use"

LEFT_OUT: Mapping[str, str] = {
    "--version": _PRINTS,
    "-cl --cache-list": _PRINTS,
    "--completion-bash": _PRINTS,
    "--list-devices": _PRINTS,
    "--rpc": _NO_FIELD,
    "-dev --device": f"{_NO_FIELD}; CUDA_VISIBLE_DEVICES and its like choose devices",
    "--override-kv": _NO_FIELD,
    "--control-vector": _NO_FIELD,
    "--control-vector-scaled": _NO_FIELD,
    "--control-vector-layer-range": "xllamacpp has no field for the vectors",
    "--spm-infill": _NO_FIELD,
    "--top-nsigma --top-n-sigma": _PER_REQUEST,
    "--dry-sequence-breaker": _PER_REQUEST,
    "-l --logit-bias": _PER_REQUEST,
    "-mu --model-url": _FETCHES,
    "-dr --docker-repo": _FETCHES,
    "-hf -hfr --hf-repo": _FETCHES,
    "-hff --hf-file": _FETCHES,
    "-hft --hf-token": _FETCHES,
    "-mmu --mmproj-url": _FETCHES,
    "--spec-draft-hf -hfd -hfrd --hf-repo-draft": _FETCHES,
    "--embd-gemma-default": _FETCHES,
    "--fim-qwen-1.5b-default": _FETCHES,
    "--fim-qwen-3b-default": _FETCHES,
    "--fim-qwen-7b-default": _FETCHES,
    "--fim-qwen-7b-spec": _FETCHES,
    "--fim-qwen-14b-spec": _FETCHES,
    "--fim-qwen-30b-default": _FETCHES,
    "--gpt-oss-20b-default": _FETCHES,
    "--gpt-oss-120b-default": _FETCHES,
    "--vision-gemma-4b-default": _FETCHES,
    "--vision-gemma-12b-default": _FETCHES,
    "--models-dir": _ROUTES,
    "--models-preset": _ROUTES,
    "--models-max": _ROUTES,
    "--models-autoload --no-models-autoload": _ROUTES,
    "--path": _PAGES,
    "--ui-config --webui-config": _PAGES,
    "--ui-config-file --webui-config-file": _PAGES,
    "--ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy": _PAGES,
    "--tools": _TOOLS,
    "--tools-runtime": _TOOLS,
    "--mcp-servers-config": _TOOLS,
    "--mcp-servers-json": _TOOLS,
    "-ag --agent -no-ag --no-agent": _TOOLS,
    "--api-prefix": _ADDRESS,
    "--ssl-key-file": _ADDRESS,
    "--ssl-cert-file": _ADDRESS,
    "--log-disable": _LOGS,
    "--log-file": _LOGS,
    "--log-jsonl --no-log-jsonl": _LOGS,
    "--log-colors": _LOGS,
    "--log-prefix --no-log-prefix": _LOGS,
    "--log-timestamps --no-log-timestamps": _LOGS,
    "--draft --draft-n --draft-max": f"{_REMOVED} --spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-min --draft-n-min": f"{_REMOVED} --spec-draft-n-min or --spec-ngram-mod-n-min",
    "--spec-ngram-size-n": f"{_REMOVED} --spec-ngram-simple-size-n or its like",
    "--spec-ngram-size-m": f"{_REMOVED} --spec-ngram-simple-size-m or its like",
    "--spec-ngram-min-hits": f"{_REMOVED} --spec-ngram-simple-min-hits or its like",
}
"""Each with the reason."""
