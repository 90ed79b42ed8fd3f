"""Options and commands of llama.cpp and Ollama that edgedec does not have, with the reason and what to do instead.

Options that mean the same as one of edgedec are not here: they are further spellings of that option, in options.py.
"""

from __future__ import annotations

__all__ = ["command_instead", "option_elsewhere"]

_WHOLE_DEVICE = (
    "a device holds the whole model",
    "leave it out, and choose the device with --device, such as --device gpu",
)
_PASSES = ("the planner chooses how many tokens a pass has", "`edgedec plan` shows the number")
_LOADING = ("the planner chooses how weights are loaded, within --memory-budget", "leave it out")
_CACHE = (
    "texts that begin alike share their rows in any case",
    "leave it out; serve --disk-cache keeps rows of ended texts",
)
_CHECKPOINT = (
    "what is in a model's configuration holds",
    "leave it out, or change config.json before `edgedec quantize`",
)
_NETWORK = (
    "edgedec makes no network connection",
    "download the checkpoint, run `edgedec quantize`, and give the bundle with -m",
)
_SAMPLER = ("this way of sampling is not implemented", "there are --temp, --top-k, --top-p, --min-p and the penalties")
_PICTURES = ("edgedec runs models of text only", "leave it out")
_ADAPTERS = ("weights are fixed in the bundle", "merge the adapter into the checkpoint before `edgedec quantize`")
_THINKING = (
    "a model's thoughts are part of its text",
    "leave it out; a request of serve may have chat_template_kwargs",
)
_LOGS = ("the log goes to stderr", "use -v or -vv, and redirect stderr")
_DRAFTS = (
    "the draft model shares the planner's choices, and its settings adapt",
    "there are --draft-max and --spec-type",
)
_CORES = ("the threads run wherever the system puts them", "there is -t; taskset and nice do the rest")
_ELSEWHERE = ("it is an option of other commands", "edgedec COMMAND --help lists the options of one")
_TALKS = ("a conversation is a command of its own", "use `edgedec chat`")

# Spellings, separated by spaces -> reason and next step. "*" at the end stands for any text.
_OPTIONS: dict[str, tuple[str, str]] = {
    "-ngl --gpu-layers --n-gpu-layers": _WHOLE_DEVICE,
    "-dev -sm --split-mode -ts --tensor-split -mg --main-gpu": _WHOLE_DEVICE,
    "-kvo --kv-offload -nkvo --no-kv-offload --op-offload --no-op-offload --no-host": _WHOLE_DEVICE,
    "-ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn": _WHOLE_DEVICE,
    "-fit --fit -fitt --fit-target -fitc --fit-ctx": (
        "every run is fitted to its memory",
        "limit it with --memory-budget",
    ),
    "--list-devices": ("devices are listed elsewhere", "use `edgedec doctor`"),
    "--rpc": ("a model runs on one machine", "leave it out"),
    "-fa --flash-attn": (
        "attention never stores its scores, so there is nothing to switch on",
        "leave it out; with a value, leave out both",
    ),
    "-b --batch-size -ub --ubatch-size -tb --threads-batch": _PASSES,
    "-cb --cont-batching -nocb --no-cont-batching": (
        "texts always join and leave the passes one by one",
        "leave it out",
    ),
    "--mlock --mmap --no-mmap -dio --direct-io -ndio --no-direct-io -lm --load-mode -lzm --lazy-mode": _LOADING,
    "--repack -nr --no-repack --check-tensors --warmup --no-warmup": _LOADING,
    "--numa -C --cpu-* -Cr -Cb -Crb --prio* --poll*": _CORES,
    "--rope-* --yarn-* -gan --grp-attn-n -gaw --grp-attn-w --override-kv": _CHECKPOINT,
    "-dt --defrag-thold -kvu --kv-unified* -no-kvu --no-kv-unified --swa-full": _CACHE,
    "-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -cram --cache-ram": _CACHE,
    "--cache-prompt --no-cache-prompt --cache-reuse --cache-idle-slots --no-cache-idle-slots": _CACHE,
    "--slot-save-path --prompt-cache* -lcs --lookup-cache-static -lcd --lookup-cache-dynamic": _CACHE,
    "-hf -hfr --hf-* -hff -hft -hfd -hfrd -hfv -hfrv -hffv -mu --model-url -dr --docker-repo": _NETWORK,
    "--offline": ("edgedec makes no network connection in any case", "leave it out"),
    "-cl --cache-list": ("bundles are listed elsewhere", "use `edgedec list`"),
    "--samplers --sampler-seq --sampling-seq --typical* --mirostat* --dry-* --xtc-* --dynatemp-*": _SAMPLER,
    "--top-nsigma --top-n-sigma --adaptive-* -bs --backend-sampling": _SAMPLER,
    "-mm --mmproj* --no-mmproj* -mmu -mmdev --image* --audio --video* --mtmd-*": _PICTURES,
    "--lora* --control-vector*": _ADAPTERS,
    "-rea --reasoning* --think --hidethinking": _THINKING,
    "--chat-template-kwargs --jinja --no-jinja --skip-chat-parsing": (
        "templates are always Jinja",
        "leave it out; a request of serve may have chat_template_kwargs",
    ),
    "--log-* -lv --verbosity --perf --no-perf": _LOGS,
    "--draft-min --draft-n-min --draft-p-* -ngld -devd -td -tbd -ctkd -ctvd --spec-* --ctx-size-draft -cd": _DRAFTS,
    "--cache-type-k-draft --cache-type-v-draft --threads-draft* --gpu-layers-draft --device-draft": _DRAFTS,
    "-cnv --conversation -i --interactive -if --interactive-first -ins --instruct": _TALKS,
    "-no-cnv --no-conversation": ("generate continues a text as it is", "use `edgedec generate` without --chat"),
    "-st --single-turn": ("it answers once in any case", "leave it out; `edgedec chat -st` answers one message"),
    "-mli --multiline-input": ("a chat always takes several lines", 'begin and end the message with """'),
    "-md -np -ctk -ctv -jf": _ELSEWHERE,  # otherwise a command without -md reads "-m d"
    "-sys --system --system-prompt -sysf --system-file --system-prompt-file": (
        "it is for conversations",
        "use it with `edgedec chat` or `edgedec generate --chat`; each request to a server has its own",
    ),
    "--simple-io --color --nowordwrap -co": (
        "nothing of the output is decorated",
        "--show-draft marks accepted guesses",
    ),
    "-e --escape --no-escape": (
        "a text is taken as it is typed",
        "leave it out; in bash, $'first\\nsecond' is a text of two lines",
    ),
    "-sp --special": ("control tokens are not printed", "--json has the ids of all tokens"),
    "--display-prompt --no-display-prompt": ("the prompt is not printed without --echo", "leave it out, or use --echo"),
    "--context-shift": ("a full conversation drops its oldest turns by default", "leave it out"),
    "--keep": ("the system message is always kept", "leave it out"),
    "-bf --binary-file": ("a prompt is text", "give it with -f as UTF-8"),
    "--embedding* --rerank* --pooling --embd-*": ("edgedec writes text, and has no embeddings", "leave it out"),
    "--models-* --tags --tools* --mcp-* -ag --agent -no-ag --no-agent": (
        "the server answers for one model",
        "leave it out",
    ),
    "--cors-origins": ("each origin is an option", "use --cors-origin once for each"),
    "--cors-*": ("the server decides it by --cors-origin", "leave it out"),
    "--ssl-*": ("the server speaks HTTP only", "put a gateway before it (docs/server.md)"),
    "--metrics --slots --props --ui --webui": ("the server has it by default", "leave it out"),
    "--path --api-prefix --reuse-port -to --timeout --threads-http --sse-ping-interval --media-path": (
        "the server has no such setting",
        "leave it out, or put a gateway before it (docs/server.md)",
    ),
    "--ui-* --webui-* --no-ui-* --no-webui-*": ("the page has no such setting", "leave it out, or use --no-ui"),
    "--spm-infill": ("there is no filling of gaps", "leave it out"),
    "--keepalive": ("a command ends when it is done", "leave it out; serve has --idle-unload"),
    "--insecure": _NETWORK,
}

# Command of llama.cpp, Ollama or a habit -> the command line that does it here.
_COMMANDS = {
    "run": "edgedec chat",
    "cli": "edgedec chat",
    "complete": "edgedec generate",
    "server": "edgedec serve",
    "create": "edgedec quantize",
    "convert": "edgedec quantize",
    "perplexity": "edgedec eval",
    "show": "edgedec inspect",
    "info": "edgedec inspect",
    "ls": "edgedec list",
    "ps": "edgedec list",
    "rm": "edgedec remove",
    "delete": "edgedec remove",
    "help": "edgedec --help",
    "version": "edgedec --version",
}
_DOWNLOADS = ("pull", "push", "cp", "signin", "download")


def option_elsewhere(spelling: str) -> tuple[str, str] | None:
    """Return why edgedec has no option ``spelling``, and what to do instead; None if no other program has it either."""
    for spellings, advice in _OPTIONS.items():
        for one in spellings.split():
            if spelling == one or (one.endswith("*") and spelling.startswith(one[:-1])):
                return advice
    return None


def command_instead(name: str) -> str | None:
    """Return the end of the message that refuses a command of another program; None if ``name`` is not one."""
    if name in _DOWNLOADS:
        return f"; {_NETWORK[0]}: {_NETWORK[1]}"
    return f"; use `{_COMMANDS[name]}`" if name in _COMMANDS else None
