"""What models take: limits by family, as their providers stated them in October 2026. No prices: those are the user's
(`[models]` of the configuration), and change more often than this program.

The first row whose pattern fits a name counts; `*` stands for anything. Names are compared in small letters and with
`-` for `.`, since gateways spell `claude-sonnet-4.5` and `claude-sonnet-4-5`."""

from __future__ import annotations

from typing import Final

_O200K, _CL100K = "o200k_base", "cl100k_base"

# Pattern, context (input and answer together) and longest answer in tokens, least tokens that are cached, whether it
# takes images, thinks, and refuses a thread that was changed in front of its thinking; the encoding of tiktoken, if it
# has one.
Row = tuple[str, int, int, int | None, bool, bool, bool, str | None]

ROWS: Final[tuple[Row, ...]] = (
    ("*claude-fable-5-1*", 1_000_000, 128_000, 512, True, True, True, None),
    ("*claude-*-5-5*", 1_000_000, 128_000, 512, True, True, True, None),
    ("*claude-sonnet-5*", 1_000_000, 128_000, 1024, True, True, False, None),
    ("*claude-fable-5*", 1_000_000, 128_000, 512, True, True, False, None),
    ("*claude-mythos-5*", 1_000_000, 128_000, 512, True, True, False, None),
    ("*claude-opus-5*", 1_000_000, 128_000, 512, True, True, False, None),
    ("*claude-opus-4-8*", 1_000_000, 128_000, 1024, True, True, False, None),
    ("*claude-opus-4-7*", 1_000_000, 128_000, 2048, True, True, False, None),
    ("*claude-opus-4-6*", 1_000_000, 128_000, 4096, True, True, False, None),
    ("*claude-sonnet-4-6*", 1_000_000, 128_000, 1024, True, True, False, None),
    ("*claude-opus-4-5*", 200_000, 64_000, 4096, True, True, False, None),
    ("*claude-haiku-4-5*", 200_000, 64_000, 4096, True, True, False, None),
    ("*claude-opus-4*", 200_000, 32_000, 1024, True, True, False, None),
    ("*claude-sonnet-4*", 200_000, 64_000, 1024, True, True, False, None),
    ("*claude-3-7*", 200_000, 64_000, 1024, True, True, False, None),
    ("*claude-3-5-haiku*", 200_000, 8192, 2048, True, False, False, None),
    ("*claude-3-5*", 200_000, 8192, 1024, True, False, False, None),
    ("*claude-3-haiku*", 200_000, 4096, 2048, True, False, False, None),
    ("*claude-3*", 200_000, 4096, 1024, True, False, False, None),
    ("*gpt-6*", 1_050_000, 128_000, 1024, True, True, False, None),
    ("*gpt-5-6*", 1_050_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-5-4-mini*", 400_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-5-4-nano*", 400_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-5-4*", 1_050_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-5-5*", 1_050_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-5-chat*", 128_000, 16_384, 1024, True, False, False, _O200K),
    ("*gpt-5*", 400_000, 128_000, 1024, True, True, False, _O200K),
    ("*gpt-4o*", 128_000, 16_384, 1024, True, False, False, _O200K),
    ("*gpt-4-1106*", 128_000, 4096, None, False, False, False, _CL100K),
    ("*gpt-4-1*", 1_047_576, 32_768, 1024, True, False, False, _O200K),
    ("*gpt-4-turbo*", 128_000, 4096, None, True, False, False, _CL100K),
    ("*gpt-4", 8192, 4096, None, False, False, False, _CL100K),
    ("*gpt-3-5-turbo*", 16_385, 4096, None, False, False, False, _CL100K),
    ("o3-mini*", 200_000, 100_000, 1024, False, True, False, _O200K),
    ("o4-mini*", 200_000, 100_000, 1024, True, True, False, _O200K),
    ("o3*", 200_000, 100_000, 1024, True, True, False, _O200K),
    ("o1*", 200_000, 100_000, 1024, True, True, False, _O200K),
    ("*gemini-2-5*", 1_048_576, 65_536, 2048, True, True, False, None),
    ("*gemini-3*", 1_048_576, 65_536, 4096, True, True, False, None),
    ("*deepseek-reasoner*", 131_072, 65_536, None, False, True, False, None),
    ("*deepseek-chat*", 131_072, 8192, None, False, False, False, None),
)
