"""The command `nnef-jax generate`, which continues a text by a language model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nnef_jax.cli import command_options as option
from nnef_jax.cli.commands import app
from nnef_jax.cli.terminal import print_piece, print_result, report_line, status

if TYPE_CHECKING:
    from nnef_jax.generation import Decoder, Sampling
    from nnef_jax.generation.companion_files import CompanionFiles
    from nnef_jax.generation.tokenizing import TextTokenizer

# A cache has places for at least 256 tokens, so that short prompts of different lengths share
# compiled programs.
_FEWEST_PLACES = 256


@dataclass(frozen=True, slots=True)
class Prompt:
    """The options that give a prompt, as a text or as token numbers."""

    prompt: Annotated[
        str | None,
        typer.Option(help="The text to continue; - reads it from the standard input."),
    ] = None
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="The prompt as token numbers, comma-separated, as 1,15043. Generated tokens are "
            "printed as numbers, and no tokenizer is needed.",
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The tokenizer.json, or its folder; by default the one beside the network.",
            show_default=False,
        ),
    ] = None
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="The prompt is a message, for the chat template beside the network."
        ),
    ] = False
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --chat: the system's message.")
    ] = None
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt first.")] = False

    def check(self) -> None:
        """Raise BadParameter for options that do not go together."""
        has_text = self.prompt is not None
        has_tokens = self.tokens is not None
        if has_text == has_tokens:
            message = "give either --prompt TEXT or --tokens NUMBERS"
            raise typer.BadParameter(message, param_hint="--prompt")
        for name, is_set in (("--tokenizer", self.tokenizer), ("--chat", self.chat)):
            if is_set and has_tokens:
                raise typer.BadParameter("does not go with --tokens", param_hint=name)
        if self.system is not None and not self.chat:
            raise typer.BadParameter("needs --chat", param_hint="--system")

    def text(self) -> str:
        """Return the text of the prompt. The prompt "-" stands for the standard input."""
        return sys.stdin.read() if self.prompt == "-" else self.prompt or ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """The options that say how the next token is chosen."""

    temperature: Annotated[
        float, typer.Option(min=0, help="Divide logits by this; 0 takes the most probable token.")
    ] = 0.0
    top_k: Annotated[
        int, typer.Option(min=0, help="Draw one of this many most probable tokens; 0: of all.")
    ] = 0
    top_p: Annotated[
        float, typer.Option(help="Draw one of the most probable tokens with this probability.")
    ] = 1.0
    repetition_penalty: Annotated[
        float, typer.Option(help="Make tokens that are in the text less probable; 1 for none.")
    ] = 1.0
    seed: Annotated[int, typer.Option(help="The seed of random numbers.")] = 0
    beams: Annotated[
        int, typer.Option(min=1, help="Search for the most probable text with this many beams.")
    ] = 1

    def check(self) -> None:
        """Raise BadParameter for options that do not go together."""
        is_random = self.temperature != 0
        has_plain_probabilities = not is_random and self.repetition_penalty == 1
        if self.beams > 1 and not has_plain_probabilities:
            message = "does not go with --temperature and --repetition-penalty"
            raise typer.BadParameter(message, param_hint="--beams")
        leaves_out_tokens = self.top_k != 0 or self.top_p != 1
        if leaves_out_tokens and not is_random:
            message = "--top-k and --top-p need a temperature, such as 0.8"
            raise typer.BadParameter(message, param_hint="--temperature")

    def sampling(self) -> Sampling:
        """Return the options as `Sampling`. Raises InputError for numbers beyond their range."""
        from nnef_jax.generation import Sampling

        return Sampling(self.temperature, self.top_k, self.top_p, self.repetition_penalty)


@app.command()
@option.grouped
def generate(
    source: option.Source,
    prompt: Prompt = Prompt(),
    steps: Annotated[int, typer.Option(min=1, help="The most tokens to generate.")] = 128,
    drawing: Drawing = Drawing(),
    stop: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="Tokens that end the text, comma-separated, or 'none'; by default those of the "
            "configuration beside the network.",
            show_default=False,
        ),
    ] = None,
    places: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="The positions of a cache; by default a power of two, for the prompt and --steps.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option(help="The type of real numbers in computations."),
    ] = "float32",
    reading: option.Reading = option.Reading(),
    cache_dir: option.CacheDir = None,
    no_cache: option.NoCache = False,
) -> None:
    """Continue a text by a language model.

    Tokens are printed as they come. The network takes tokens and caches of keys and values, as
    docs/language_models.md says. The speed is printed to the standard error.
    """
    prompt.check()
    drawing.check()
    sampling = drawing.sampling()
    stops = None if stop is None else _numbers(stop, "--stop")
    from nnef_jax.generation.companion_files import CompanionFiles

    companions = CompanionFiles(source, prompt.tokenizer)
    tokenizer = None
    if prompt.tokens is not None:
        tokens = _numbers(prompt.tokens, "--tokens")
    else:
        tokenizer, tokens = _encoded(prompt, companions)
    with option.caching(cache_dir, no_cache) as folder:
        model = reading.load(source, dtype=dtype, cache_dir=folder, measure=bool(folder))
        import nnef_jax

        decoder = nnef_jax.decoder(model, places or _places(len(tokens) + steps))
        _require_fit(decoder, tokens, steps, tokenizer)
        if stops is None:
            stops = _default_stops(companions, tokenizer)
        # `_print` closes the stack, and with it the status, when the first token comes.
        with ExitStack() as compiling:
            compiling.enter_context(status("compiling"))
            generated = _generated(decoder, tokens, steps, drawing, sampling, stops)
            _print(generated, compiling, prompt, tokens, tokenizer, stops)


def _numbers(text: str, option_name: str) -> list[int]:
    """Return the numbers in the text of an option. The text "none" has no numbers."""
    words = [] if text == "none" else [word.strip() for word in text.split(",")]
    are_numbers = all(word.isascii() and word.isdecimal() for word in words)
    if not are_numbers:
        message = f"{text!r:.60} is not a list of numbers such as 1,15043"
        raise typer.BadParameter(message, param_hint=option_name)
    return [int(word) for word in words]


def _encoded(prompt: Prompt, companions: CompanionFiles) -> tuple[TextTokenizer, list[int]]:
    """Return the tokenizer, and the tokens of the prompt.

    Raises InputError if there is no tokenizer or chat template.
    """
    from nnef_jax.generation.chat_template import rendered
    from nnef_jax.generation.tokenizing import TextTokenizer

    tokenizer = TextTokenizer(companions.tokenizer_path())
    if not prompt.chat:
        return tokenizer, tokenizer.encode(prompt.text())
    template, path_of_template = companions.chat_template()
    messages: list[dict[str, str]] = []
    if prompt.system is not None:
        messages.append({"role": "system", "content": prompt.system})
    messages.append({"role": "user", "content": prompt.text()})
    text = rendered(template, messages, companions.special_tokens(), str(path_of_template))
    # The text from the template contains the special tokens already.
    return tokenizer, tokenizer.encode(text, add_special=False)


def _places(needed: int) -> int:
    """Return the least power of two that is at least max(`needed`, `_FEWEST_PLACES`)."""
    next_power_of_two = 1 << (needed - 1).bit_length()
    return max(_FEWEST_PLACES, next_power_of_two)


def _require_fit(
    decoder: Decoder, tokens: Sequence[int], steps: int, tokenizer: TextTokenizer | None
) -> None:
    """Raise InputError if the network cannot continue the prompt, before anything is compiled."""
    from nnef_jax import InputError
    from nnef_jax.wording.similar import listed

    # Each token that the network reads takes a place in the caches. The network does not read the
    # last generated token.
    needed = len(tokens) + steps - 1
    if needed > decoder.places:
        message = f"a prompt of {len(tokens)} tokens and {steps} further ones need {needed} places"
        raise InputError(message, hint=f"--places {needed}, or fewer --steps")
    if decoder.roles.context:
        names = listed(decoder.roles.context)
        raise InputError(
            f"the network also takes {names}, which the command line cannot give",
            hint="in Python: nnef_jax.decoder(model).generate(tokens, steps, NAME=array)",
        )
    # The logits have one number for each token that the network can generate.
    token_count = decoder.model.outputs[0].shape[-1]
    if tokenizer is not None and token_count is not None:
        tokenizer.require_words(token_count)


def _default_stops(companions: CompanionFiles, tokenizer: TextTokenizer | None) -> list[int]:
    """Return the tokens that end a text. The files beside the network name these tokens."""
    stops = companions.stop()
    if stops or tokenizer is None:
        return stops
    # The configuration has no numbers of end tokens, but it may have the text of the end token.
    end_text = companions.special_tokens().get("eos_token")
    end_token = None if end_text is None else tokenizer.token(end_text)
    return [] if end_token is None else [end_token]


def _generated(
    decoder: Decoder,
    tokens: Sequence[int],
    steps: int,
    drawing: Drawing,
    sampling: Sampling,
    stops: Sequence[int],
) -> Iterator[int]:
    """Yield the generated tokens, including the token that ends the text.

    `tokens` are the tokens of the prompt, and `steps` is the largest number of generated tokens.
    """
    if drawing.beams > 1:
        best = decoder.search([*tokens], steps, beams=drawing.beams, stop=stops)
        # There is one prompt, and thus one row of tokens.
        yield from best.tokens[0, : best.lengths[0]].tolist()
        return
    stream = decoder.stream([*tokens], steps, sample=sampling, key=drawing.seed, stop=stops)
    for tokens_of_step in stream:
        yield int(tokens_of_step[0])


def _print(
    generated: Iterator[int],
    compiling: ExitStack,
    prompt: Prompt,
    tokens: Sequence[int],
    tokenizer: TextTokenizer | None,
    stops: Sequence[int],
) -> None:
    """Print tokens as they come, and then the speed.

    Args:
        generated: the generated tokens.
        compiling: the status during compilation, which is closed at the first token.
        prompt: the options of the prompt.
        tokens: the tokens of the prompt.
        tokenizer: the tokenizer, or None to print the numbers of tokens.
        stops: the tokens that end the text, and are not printed as text.
    """
    from nnef_jax.generation.tokenizing import TextPieces

    pieces = None if tokenizer is None else TextPieces(tokenizer, tokens)
    start = time.perf_counter()
    times_of_tokens: list[float] = []
    for token in generated:
        times_of_tokens.append(time.perf_counter())
        is_first = len(times_of_tokens) == 1
        if is_first:
            compiling.close()
            if prompt.echo:
                print_piece(_echoed(tokenizer, tokens))
        if pieces is None:
            print_piece(f"{token} ")
        elif token not in stops:
            print_piece(pieces.add(token))
    print_result(pieces.end() if pieces else "")
    report_line(_speed(start, times_of_tokens))


def _speed(start: float, times: Sequence[float]) -> str:
    """Return a text such as "128 tokens: the first after 1.2 s, then 40.0 tokens/s".

    `start` is the time of the start in seconds, and `times` are the times of the tokens.
    """
    first = times[0] if times else start
    last = times[-1] if times else start
    text = f"{len(times)} tokens: the first after {first - start:.1f} s"
    if last > first:
        text += f", then {(len(times) - 1) / (last - first):.1f} tokens/s"
    return text


def _echoed(tokenizer: TextTokenizer | None, tokens: Sequence[int]) -> str:
    """Return the prompt as it is printed: as text, or as numbers without a tokenizer."""
    if tokenizer is None:
        return "".join(f"{token} " for token in tokens)
    return tokenizer.decode(tokens)
