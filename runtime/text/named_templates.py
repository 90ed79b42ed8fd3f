"""Chat templates by name, for models whose bundle has none, or another one than is needed.

Each is the format that models of this family were trained with, and has the name by which llama.cpp's ``--chat-template``
knows it. A message's content is trimmed where llama.cpp trims it.

Source: llama.cpp ``src/llama-chat.cpp``; and the cards of the models.
"""

from __future__ import annotations

from edgedec.errors import UsageError
from edgedec.host.spelling import did_you_mean

__all__ = ["NAMED_TEMPLATES", "named_template"]

_EACH = "{{ bos_token }}{% for message in messages %}"
_LLAMA3_HEAD = "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
_COMMAND_R_ROLES = "{'system': '<|SYSTEM_TOKEN|>', 'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>'}"

NAMED_TEMPLATES = {
    "chatml": (
        f"{_EACH}<|im_start|>{{{{ message['role'] }}}}\n{{{{ message['content'] }}}}<|im_end|>\n{{% endfor %}}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama3": (
        f"{_EACH}{_LLAMA3_HEAD}{{{{ message['content'] | trim }}}}<|eot_id|>{{% endfor %}}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "command-r": (
        f"{_EACH}<|START_OF_TURN_TOKEN|>{{{{ {_COMMAND_R_ROLES}[message['role']] }}}}"
        "{{ message['content'] | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
        "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
    ),
}


def named_template(text: str) -> str:
    """Return the template of a name, or ``text`` itself if it is a template, which has a Jinja block or expression.

    Raises:
        UsageError: it is neither.
    """
    if text in NAMED_TEMPLATES:
        return NAMED_TEMPLATES[text]
    if "{{" in text or "{%" in text:
        return text
    names, suggestion = ", ".join(NAMED_TEMPLATES), did_you_mean(text, NAMED_TEMPLATES)
    raise UsageError(f"{text[:40]!r} is neither a Jinja template nor one of the names {names}{suggestion}")
