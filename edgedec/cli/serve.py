"""``edgedec serve``: answer requests over HTTP."""

from __future__ import annotations

import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from edgedec.bundle.embedded import ABOUT, EXAMPLES
from edgedec.cli._service import listening, log_format_named, notes_as, request_log, socket_of_systemd
from edgedec.cli.console import note, read_text
from edgedec.cli.conversation_options import TemplateOptions
from edgedec.cli.options import SanitizeControlTokens, Verbose, option, resolve_model
from edgedec.cli.run_options import RunOptions, SamplingOptions, command_line
from edgedec.errors import ToolError, UsageError
from edgedec.host.install_hint import install_again, install_extra
from edgedec.least_versions import SERVE_PYTHON, dotted

if TYPE_CHECKING:
    from edgedec.runtime.engine.spill import SpillFolder
    from edgedec.runtime.pooling import Pooling
    from edgedec.runtime.session.session import Session

__all__ = ["serve"]

_PARALLEL = 4  # most texts at a time without --parallel


def _check_packages() -> None:
    if sys.version_info < SERVE_PYTHON:
        raise ToolError(
            f"edgedec serve needs Python {dotted(SERVE_PYTHON)} or newer, and this is {platform.python_version()}; "
            f"use edgedec chat, or with a newer Python, {install_again()}"
        )
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ToolError(f"edgedec serve needs {' and '.join(missing)}; run: {install_extra('serve')}")


def _keys(key: str | None, file: Path | None) -> tuple[str, ...]:
    """Return the keys of both options."""
    keys = [] if key is None else [key]
    if file is not None:
        keys += [line.strip() for line in read_text(file, "--api-key-file").splitlines() if line.strip()]
        if not keys:
            raise UsageError(f"--api-key-file {file}: the file has no key; write one on each line")
    return tuple(keys)


def _address(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _disk(run: RunOptions, size: str | None) -> AbstractContextManager[SpillFolder | None]:
    """Return the folder of ``--disk-cache``; None without the option.

    Raises:
        UsageError: the size is not one.
        BundleError: the model cannot be opened.
    """
    from edgedec.bundle.bundle import Bundle
    from edgedec.host.paths import cache_folder
    from edgedec.memory.byte_sizes import parse_bytes
    from edgedec.runtime.engine.spill import SpillFolder

    if size is None:
        return nullcontext()
    try:
        limit = parse_bytes(size)
    except UsageError as error:
        raise UsageError(f"--disk-cache {error}") from None
    model = Bundle.open(resolve_model(run.model))
    return SpillFolder(cache_folder() / "sequences", model=model.sha256, limit_bytes=limit)


@command_line
def serve(
    ctx: typer.Context,
    run: RunOptions,
    sampling: SamplingOptions,
    templates: TemplateOptions,
    host: Annotated[
        str,
        option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on, or several with commas; others than this machine's need a key.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, option("--port", min=0, max=65535, metavar="N", help="Port to listen on; 0: a free one.")
    ] = 8080,
    api_key: Annotated[
        str | None,
        option(
            "--api-key",
            metavar="KEY",
            show_default=False,
            help="Key that requests must have. Other users of the machine can read a command line; prefer the file, or "
            "the variable EDGEDEC_SERVE_API_KEY.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, option("--api-key-file", metavar="FILE", help="Keys that requests may have, one per line.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        option("--allowed-host", metavar="NAME", help="Further name of this server in Host headers; may be repeated."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        option(
            "--cors-origin",
            metavar="ORIGIN",
            help="Origin whose web pages may use the server, such as https://example.org, or localhost; may be repeated.",
        ),
    ] = None,
    alias: Annotated[
        str | None, option("-a", "--alias", metavar="NAME", help="Name of the model in answers; default: the bundle's.")
    ] = None,
    parallel: Annotated[
        int,
        option(
            "-np",
            "--parallel",
            min=0,
            max=64,
            metavar="N",
            help="Number of texts to write at a time; 0: up to 4, as many as the budget has room for without less context; "
            "1 on accelerators.",
        ),
    ] = 0,
    queue: Annotated[
        int, option("--queue", min=1, max=4096, metavar="N", help="Largest number of texts that wait; then 429.")
    ] = 64,
    max_body: Annotated[str, option("--max-body", metavar="SIZE", help="Largest body of a request.")] = "1MiB",
    idle_unload: Annotated[
        float,
        option(
            "--idle-unload",
            min=0,
            metavar="SECONDS",
            help="Unload the model after this time without a request; the next one loads it again. 0: never.",
        ),
    ] = 0,
    disk_cache: Annotated[
        str | None,
        option(
            "--disk-cache",
            metavar="SIZE",
            help="Keep rows of ended texts in files of this size, for prompts that begin alike. They tell the texts.",
        ),
    ] = None,
    sanitize_control_tokens: SanitizeControlTokens = True,
    reasoning: Annotated[
        str,
        option(
            "--reasoning",
            metavar="on|off|auto",
            help="Let models with reasoning think before they answer; auto: as the chat template does by itself.",
        ),
    ] = "auto",
    reasoning_budget: Annotated[
        int,
        option("--reasoning-budget", metavar="N", help="Tokens of reasoning, then it is closed; -1: any number."),
    ] = -1,
    reasoning_format: Annotated[
        str,
        option(
            "--reasoning-format",
            metavar="NAME",
            help="deepseek: reasoning in reasoning_content; none: in the content; auto: deepseek if the model has the tags.",
        ),
    ] = "auto",
    embeddings: Annotated[
        bool,
        option(
            "--embeddings", "--embedding", help="Answer /v1/embeddings, beside texts. The plan has room for the rows."
        ),
    ] = False,
    pooling: Annotated[
        str | None,
        option(
            "--pooling",
            metavar="mean|last",
            help="What an embedding is: the mean of the rows of all tokens, or the last row; needs --embeddings. "
            "Without it: mean.",
        ),
    ] = None,
    no_slots: Annotated[bool, option("--no-slots", help="Do not answer /slots.")] = False,
    no_metrics: Annotated[bool, option("--no-metrics", help="Do not answer /metrics.")] = False,
    no_ui: Annotated[bool, option("--no-ui", "--no-webui", help="Do not serve the page for chats.")] = False,
    web: Annotated[
        Path | None,
        option(
            "--web",
            metavar="FOLDER",
            help="Offer a site of `edgedec export --format web` at /web/: the model in the user's browser.",
        ),
    ] = None,
    log_requests: Annotated[
        bool,
        option(
            "--log-requests/--no-log-requests",
            help="Write a line on stderr for each request: its client, path, status and counts, and no text or key.",
        ),
    ] = True,
    log_format: Annotated[
        str, option("--log-format", metavar="NAME", help="Form of the lines on stderr: text, or json.")
    ] = "text",
    verbose: Verbose = 0,
) -> None:
    """Answer requests over HTTP, as OpenAI's and llama.cpp's servers do.

    The server ends on Ctrl-C or SIGTERM, after it has answered the requests that it accepted.
    """
    _check_packages()
    from edgedec.memory.byte_sizes import parse_bytes
    from edgedec.runtime.server.reasoning import ReasoningSettings
    from edgedec.runtime.server.settings import ServerSettings
    from edgedec.runtime.server.systemd import Notifier

    form = log_format_named(log_format)
    ctx.with_resource(notes_as(form))  # until the command ends
    notifier, passed = Notifier.of_environment(), socket_of_systemd(ctx)
    try:
        body_bytes = parse_bytes(max_body)
    except UsageError as error:
        raise UsageError(f"--max-body {error}") from None
    if pooling is not None and not embeddings:
        raise UsageError(f"--pooling {pooling} is for embeddings; add --embeddings, or leave it out")
    settings = ServerSettings(
        model_name=alias or Path(run.model).name.removesuffix(".edgedec") or "model",
        host=host if passed is None else passed.getsockname()[0],
        api_keys=_keys(api_key, api_key_file),
        allowed_hosts=tuple(allowed_host or ()),
        cors_origins=tuple(cors_origin or ()),
        body_bytes=body_bytes,
        sampling=sampling.sampling(),
        n_predict=sampling.n_predict,
        shows_slots=not no_slots,
        shows_metrics=not no_metrics,
        has_page=not no_ui,
        sanitize=sanitize_control_tokens,
        reasoning=ReasoningSettings(mode=reasoning, format=reasoning_format, budget=reasoning_budget),
        pooling=cast("Pooling", pooling or "mean"),  # the settings check it
        web=web,
        about=ABOUT.get(run.model, ""),
        examples=EXAMPLES if run.model in ABOUT else (),
    )
    if web is not None:
        from edgedec.runtime.server.web import check_site

        check_site(web)
    template = templates.template()
    spec = run.spec()
    with (
        listening(passed, settings.addresses, port) as sockets,
        _disk(run, disk_cache) as disk,
        request_log(form, wanted=log_requests) as log,
    ):
        # These take half a second, which a port in use does not cost.
        from edgedec.bundle.bundle import Bundle
        from edgedec.memory.heap import keep_objects
        from edgedec.runtime.server.app import create_app
        from edgedec.runtime.server.listener import run_server
        from edgedec.runtime.server.memory import GRAMMAR_ROOM, ServerMemory, server_items
        from edgedec.runtime.server.service import ModelService

        def open_session() -> Session:
            bundle = Bundle.open(resolve_model(run.model))
            memory.budget = run.find_budget()
            items = server_items(bundle.tokens.size, requests=settings.requests, connections=settings.connections)
            beside = run.with_room(GRAMMAR_ROOM, parallel, spec, memory.budget, beside=items, embeddings=embeddings)
            sequences = run.parallel(
                parallel, spec, memory.budget, most=_PARALLEL, beside=beside, embeddings=embeddings
            )
            session = run.open_session(spec, memory.budget, sequences=sequences, beside=beside, embeddings=embeddings)
            if disk is not None:
                session.memory.keep_on_disk(disk)
            keep_objects()
            return session

        memory = ServerMemory()
        service = ModelService(
            open_session, queue_limit=queue, idle_unload_s=idle_unload, memory=memory, chat_template=template
        )
        gate = create_app(service, settings, log)
        own_port = sockets[0].getsockname()[1]
        addresses = " and ".join(_address(address, own_port) for address in settings.addresses)
        line = f"serves {settings.model_name} at {addresses}"

        def tell_ready() -> None:
            note(f"edgedec {line}")
            notifier.tell("READY=1", status=line)

        notifier.tell(status=f"loads {settings.model_name}")
        run_server(gate, service, *sockets, ready=tell_ready, notifier=notifier)
