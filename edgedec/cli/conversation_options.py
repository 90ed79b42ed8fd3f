"""The options of commands that hold a conversation: the system message and the chat template."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from edgedec.cli.console import read_text
from edgedec.cli.options import option
from edgedec.errors import BundleError, EdgedecError, UsageError

if TYPE_CHECKING:
    from edgedec.runtime.session.conversation import Conversation
    from edgedec.runtime.session.session import Session

__all__ = ["ConversationOptions", "TemplateOptions"]


@dataclass(frozen=True, kw_only=True)
class TemplateOptions:
    """The chat template in place of the model's own."""

    chat_template: Annotated[
        str | None,
        option(
            "--chat-template",
            metavar="NAME|JINJA",
            help="Chat template in place of the model's own: chatml, llama3, command-r, or the template itself.",
        ),
    ] = None
    chat_template_file: Annotated[
        Path | None,
        option("--chat-template-file", metavar="FILE", help="File with a chat template in place of the model's own."),
    ] = None

    def template(self) -> str | None:
        """Return the chat template of both options; None without them.

        Raises:
            UsageError: both are given, a name is unknown, or the template does not parse.
        """
        text, file = self.chat_template, self.chat_template_file
        if text is not None and file is not None:
            raise UsageError(
                "--chat-template and --chat-template-file are two sources of one template; give one of them"
            )
        if file is not None:
            flag, source = f"--chat-template-file {file}", read_text(file, "--chat-template-file")
        elif text is not None:
            flag, source = "--chat-template", text
        else:
            return None
        # These import Jinja, which plain texts do not need.
        from edgedec.runtime.text.chat_template import check_template
        from edgedec.runtime.text.named_templates import named_template

        try:
            source = source if file is not None else named_template(source)
            check_template(source)
        except (BundleError, UsageError) as error:
            raise UsageError(f"{flag}: {error}") from None
        return source


@dataclass(frozen=True, kw_only=True)
class ConversationOptions(TemplateOptions):
    """The options of a conversation."""

    system: Annotated[
        str | None,
        option("-sys", "--system", "--system-prompt", metavar="TEXT", help="System message of the conversation."),
    ] = None
    system_file: Annotated[
        Path | None,
        option("-sysf", "--system-file", "--system-prompt-file", metavar="FILE", help="File with the system message."),
    ] = None

    def system_message(self) -> str | None:
        """Return the system message of both options; None without them. A file's last newline is not part of it.

        Raises:
            UsageError: both are given, or the file cannot be read.
        """
        if self.system is not None and self.system_file is not None:
            raise UsageError("--system and --system-file are two sources of one message; give one of them")
        if self.system_file is None:
            return self.system
        return read_text(self.system_file, "--system-file").removesuffix("\n")

    def check(self) -> None:
        """Check the options before a model is loaded.

        Raises:
            UsageError: as ``system_message`` and ``template``.
        """
        self.system_message()
        self.template()

    def open(self, session: Session, *, shift: bool = True, sanitize: bool = True) -> Conversation:
        """Return a new conversation.

        Raises:
            UsageError: an option is wrong, or the template refuses the system message, as it would with every message.
        """
        from edgedec.runtime.session.conversation import Conversation

        system, template = self.system_message(), self.template()
        conversation = Conversation(session, system=system, shift=shift, sanitize=sanitize, template=template)
        try:
            conversation.check_system()
        except EdgedecError as error:
            flag = "--system" if self.system_file is None else "--system-file"
            raise UsageError(f"{flag}: {error}; leave {flag} out, or say it in the first message") from error
        return conversation

    @property
    def given(self) -> list[str]:
        """Flags of the options that are set."""
        return [
            f"--{name.replace('_', '-')}"
            for name in ("system", "system_file", "chat_template", "chat_template_file")
            if getattr(self, name) is not None
        ]
