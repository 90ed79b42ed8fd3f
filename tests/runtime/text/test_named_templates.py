"""Test the chat templates that have a name."""

from __future__ import annotations

import pytest

from edgedec.errors import UsageError
from edgedec.runtime.text.chat_template import render
from edgedec.runtime.text.named_templates import NAMED_TEMPLATES, named_template

MESSAGES = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "Bye"},
]
EXPECTED = {
    "chatml": "<B><|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n",
    "llama3": "<B><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>",
    "command-r": "<B><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hello<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hi<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Bye<|END_OF_TURN_TOKEN|>",
}
ANSWER = {
    "chatml": "<|im_start|>assistant\n",
    "llama3": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "command-r": "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
}


def test_every_name_is_tested() -> None:
    assert set(NAMED_TEMPLATES) == set(EXPECTED) == set(ANSWER)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_format_of_a_conversation(name: str) -> None:
    template = named_template(name)
    plain = render(template, MESSAGES, bos_token="<B>", eos_token="<E>", add_generation_prompt=False)
    assert plain == EXPECTED[name]
    assert (
        render(template, MESSAGES, bos_token="<B>", eos_token="<E>", add_generation_prompt=True) == plain + ANSWER[name]
    )


def test_a_template_is_its_own_name() -> None:
    assert named_template("{{ messages }}") == "{{ messages }}"


@pytest.mark.parametrize("text", ["chatm", "", "no template", "chatml.jinja"])
def test_a_text_that_is_neither_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither a Jinja template nor one of the names chatml, llama3, command-r"):
        named_template(text)
