"""Reasoning of chats: what the server and a request say about it, and the names that a chat template gets.

Source: llama.cpp ``tools/server/README.md`` for the options and ``reasoning_format``; vLLM, OpenRouter, Anthropic and ollama
for further names of the fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from edgedec.errors import UsageError
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.ignored_fields import note_ignored
from edgedec.runtime.server.request_body import Count, RequestBody

__all__ = ["ReasoningFields", "ReasoningLimits", "ReasoningSettings"]

Format = Literal["auto", "deepseek", "none"]
_MODES = ("auto", "on", "off")
_NAME = "enable_thinking"
# A template with one of these says itself what holds without the name.
_HAS_DEFAULT = re.compile(rf"{_NAME}\s+is\s+(not\s+)?defined|{_NAME}\s*\|\s*default")
_TAG = re.compile(r"think(ing)?\|?[>\]]", re.IGNORECASE)  # the end of a tag: </think>, [/THINK], <|END_THINKING|>
_BUDGETS = (
    *("reasoning_budget_tokens", "thinking_budget_tokens", "reasoning_budget", "thinking_budget"),
    "thinking_token_budget",
)


class ReasoningOptions(RequestBody):
    """OpenRouter's options of reasoning, and those that Anthropic calls ``thinking``."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        ["exclude", "summary", "generate_summary", "display", "clear_thinking", "context", "mode"]
    )
    effort: str | None = None
    enabled: bool | None = None
    type: Literal["enabled", "disabled", "adaptive"] | None = None
    max_tokens: Count | None = None
    budget_tokens: Count | None = None

    @property
    def wanted(self) -> bool | None:
        """True if the model is to think, False if it is not; None if the options do not say."""
        return self.enabled if self.type is None else self.type != "disabled"


class ReasoningFields(RequestBody):
    """The fields of a conversation that tell its template about reasoning."""

    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    thinking: ReasoningOptions | None = None
    enable_thinking: bool | None = None
    think: bool | None = None  # ollama's name

    @property
    def names(self) -> dict[str, Any]:
        """Further names for the template: ``reasoning_effort``, ``enable_thinking``, and ``chat_template_kwargs``.

        The effort ``none`` asks for no reasoning, and is no name.

        Raises:
            ApiError: ``enable_thinking`` among them is neither true nor false.
        """
        options = [one for one in (self.reasoning, self.thinking) if one is not None]
        efforts = [self.reasoning_effort, *(one.effort for one in options)]
        effort = next((one for one in efforts if one is not None), None)
        wishes = [self.enable_thinking, self.think, *(one.wanted for one in options)]
        wanted = next((one for one in wishes if one is not None), False if effort == "none" else None)
        names: dict[str, Any] = {} if effort in (None, "none") else {"reasoning_effort": effort}
        names |= {} if wanted is None else {_NAME: wanted}
        names |= self.chat_template_kwargs or {}
        if not isinstance(names.get(_NAME, False), bool):
            raise ApiError(
                400, f"chat_template_kwargs.{_NAME} must be true or false", param=f"chat_template_kwargs.{_NAME}"
            )
        return names


class ReasoningLimits(RequestBody):
    """The fields of a chat that limit its reasoning, under the names of several servers, and say where it is shown."""

    reasoning_format: Format | None = None
    reasoning_budget_tokens: Count | None = None
    thinking_budget_tokens: Count | None = None
    reasoning_budget: Count | None = None
    thinking_budget: Count | None = None
    thinking_token_budget: Count | None = None

    @property
    def budgets(self) -> dict[str, int]:
        """The numbers of tokens after which the reasoning ends, by field. -1 says nothing."""
        found = {name: getattr(self, name) for name in _BUDGETS}
        for name, part in (("reasoning", "max_tokens"), ("thinking", "budget_tokens")):
            found[f"{name}.{part}"] = getattr(getattr(self, name, None), part, None)
        return {name: value for name, value in found.items() if value is not None and value >= 0}


@dataclass(frozen=True, kw_only=True)
class ReasoningSettings:
    """Settings of reasoning for requests that do not say otherwise.

    Members:
        mode: ``on`` and ``off`` are given to the template as ``enable_thinking``; with ``auto`` it has its own default, and
            true if it has none.
        format: place of the reasoning in answers: ``deepseek``, ``reasoning_content``; ``none``, the content, as it stands;
            ``auto``, ``reasoning_content`` if the model has the tags.
        budget: tokens after which the reasoning ends; -1: any number.

    Raises:
        UsageError: a value is out of range.
    """

    mode: str = "auto"
    format: str = "auto"
    budget: int = -1

    def __post_init__(self) -> None:
        formats = get_args(Format)
        for option, value, allowed in (
            ("--reasoning", self.mode, _MODES),
            ("--reasoning-format", self.format, formats),
        ):
            if value not in allowed:
                raise UsageError(f"{option} must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}")
        if self.budget < -1:
            raise UsageError(f"--reasoning-budget must be a number of tokens, or -1 for any number, not {self.budget}")

    def names(self, template: str | None, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the names for a template: those that were asked for, and ``enable_thinking`` if none of them is that."""
        if _NAME in asked:
            return dict(asked)
        if self.mode != "auto":
            return {_NAME: self.mode == "on", **asked}
        source = template or ""
        is_missed = _NAME in source and _TAG.search(source) and not _HAS_DEFAULT.search(source)
        return {**({_NAME: True} if is_missed else {}), **asked}

    def is_shown_apart(self, body: ReasoningLimits, *, has_tags: bool) -> bool:
        """Return True if reasoning is to be divided from the content of an answer."""
        chosen = body.reasoning_format or self.format
        return has_tags if chosen == "auto" else chosen == "deepseek"

    def budget_of(self, body: ReasoningLimits, *, has_tags: bool) -> int | None:
        """Return the budget of a request's reasoning; None for a model without it, whose request is told so.

        Raises:
            ApiError: two fields of the budget differ.
        """
        budgets = body.budgets
        if len({*budgets.values()}) > 1:
            names = " and ".join(budgets)
            raise ApiError(400, f"{names} are the same limit and differ; leave one out", param=[*budgets][-1])
        if not (has_tags or self.is_shown_apart(body, has_tags=has_tags)):
            note_ignored(*budgets)
            return None
        return next(iter(budgets.values()), self.budget)
