"""The shell around the commands: version, help, errors, signals, pipes, terminals."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

import tailrace as tailrace_package
from tailrace import Log, __version__, kernel
from tailrace.cli import main
from tests.cli.conftest import Run, Shell, command, flip, segments, tailrace
from tests.test_docs import cli_commands

COMMANDS = ["dump", "recover", "vacuum", "verify"]


def test_version(run: Run) -> None:
    result = run("--version")
    assert result.exit_code == 0
    state = f"kernel: {kernel.IMPLEMENTATION}, crc32c: {kernel.CRC_BACKEND}"
    assert result.stdout == f"tailrace {__version__} ({state})\n"


def test_as_a_module(log: Path) -> None:
    """For those who have the package, and no command on their path."""

    def run_module(*arguments: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "tailrace", *map(str, arguments)]
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)

    assert run_module("--version").stdout == tailrace("--version").stdout
    shown = run_module("--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith("Usage: python -m tailrace [OPTIONS] COMMAND")
    assert run_module("verify", log).returncode == 0
    missing = run_module("verify", log / "nothing")
    assert missing.returncode == 2
    assert missing.stderr.startswith("tailrace: ")


def test_version_of_the_pure_kernel() -> None:
    done = tailrace("--version", env={"TAILRACE_KERNEL": "pure"})
    assert done.returncode == 0
    assert done.stdout == f"tailrace {__version__} (kernel: pure, crc32c: fastcrc)\n"


@pytest.mark.skipif(kernel.IMPLEMENTATION != "compiled", reason="the kernel is not built")
def test_version_of_the_compiled_kernel() -> None:
    done = tailrace("--version", env={"TAILRACE_KERNEL": "compiled"})
    assert re.fullmatch(r"tailrace \S+ \(kernel: compiled, crc32c: \S+\)\n", done.stdout)


def test_version_imports_no_more_than_it_needs() -> None:
    code = (
        "import sys; from tailrace.cli import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'rich', 'pyarrow'}))\n"
        "print([name for name in sys.modules if name.startswith('tailrace.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["[]", "['tailrace.cli.lazy']"]


def test_help(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert re.search(rf"(?m)^  {name} +\w", result.stdout)
        shown = run(name, "--help")
        assert shown.exit_code == 0
        assert max(map(len, shown.stdout.splitlines())) <= 100


def test_an_unknown_command(run: Run) -> None:
    result = run("explode")
    assert result.exit_code == 2
    assert result.stderr == "tailrace: No such command 'explode'; see main --help\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("publish q a b", "Got unexpected extra argument (b); see tailrace publish --help"),
        ("create q --max-depth -1", "Invalid value for '--max-depth': -1 is not in the range"),
        ("publish q x --header c", "Invalid value for '--header': 'c' is not NAME=VALUE; see"),
        ("publish q --size 3", "--size goes with --count; see tailrace publish --help"),
        ("create", "Missing argument 'QUEUE'; see tailrace create --help"),
        ("completion", "Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish; see"),
        ("groups reset q", "Missing argument 'GROUP'; see tailrace groups reset --help"),
        ("bench lag", "No such command 'lag'"),
        ("--no-such-option", "No such option"),
    ],
)
def test_wrong_usage_is_one_line(line: str, said: str, shell: Shell) -> None:
    found = shell.refused(*line.split())
    assert found.startswith(said)
    assert "; see tailrace" in found
    assert found.endswith(" --help")


def test_who_says_nothing_is_shown_the_help(shell: Shell) -> None:
    for words in ([], ["bench"]):
        done = shell(*words)
        assert done.returncode == 2
        assert done.stderr.startswith(" ".join(["Usage: tailrace", *words]))


@pytest.mark.parametrize("name", COMMANDS)
def test_missing_arguments(name: str, run: Run) -> None:
    assert run(name).exit_code == 2
    assert run(name, "--no-such-option", "x").exit_code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_something_that_is_not_there(name: str, run: Run, tmp_path: Path) -> None:
    result = run(name, tmp_path / "nothing")
    assert result.exit_code == 2
    assert result.stdout == ""
    what = "file" if name == "dump" else "directory"
    assert result.stderr == f"tailrace: {tmp_path / 'nothing'}: there is no such {what}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["recover", "vacuum", "verify"])
def test_a_directory_without_a_log(name: str, run: Run, tmp_path: Path) -> None:
    result = run(name, tmp_path)
    assert result.exit_code == 2
    why = "holds no log: there are no .seg files in it"
    assert result.stderr == f"tailrace: {tmp_path} {why}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["recover", "vacuum", "verify"])
def test_the_folder_beside(name: str, run: Run, log: Path) -> None:
    """One too high or too low: the error says where the log is."""
    above = run(name, log.parent)
    assert above.exit_code == 2
    assert above.stderr.endswith(f"; there is a log in {log}\n")
    below = run(name, log / ".tailrace")
    assert below.exit_code == 2
    assert below.stderr.endswith(f"; it belongs to the log {log}\n")


@pytest.mark.parametrize("name", ["recover", "vacuum", "verify"])
def test_a_file_where_a_directory_is_meant(name: str, run: Run, log: Path) -> None:
    result = run(name, segments(log)[0])
    assert result.exit_code == 2
    assert "name the directory" in result.stderr


@pytest.mark.parametrize("name", ["recover", "vacuum", "verify"])
def test_the_folder_above(name: str, run: Run, log: Path) -> None:
    log.rename(log.parent / "segments")
    assert run(name, log.parent).exit_code == 0


def test_a_store_is_named(run: Run, log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "queue" / "queues" / "orders" / "segments"
    folder.parent.mkdir(parents=True)
    log.rename(folder)
    for store in (tmp_path / "data", tmp_path / "data" / "queue"):
        result = run("locks", store)
        assert result.exit_code == 2
        assert str(folder) in result.stderr
        assert "orders: 36 records in 12 batches" in run("verify", store).stdout


def test_a_traceback_on_request(tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    assert "Traceback" not in tailrace("verify", missing).stderr
    done = tailrace("verify", missing, env={"TAILRACE_DEBUG": "1"})
    assert "Traceback" in done.stderr
    assert done.returncode == 1


def test_exit_codes_of_a_process(log: Path) -> None:
    assert tailrace("verify", log).returncode == 0
    assert tailrace("recover", log).returncode == 0
    flip(segments(log)[0], 60)
    assert tailrace("verify", log).returncode == 1
    assert tailrace("recover", log).returncode == 1
    assert tailrace("recover", "--apply", log).returncode == 0
    assert tailrace("verify", log).returncode == 0
    assert tailrace("verify", log / "nothing").returncode == 2


@pytest.fixture
def long_segment(tmp_path: Path) -> Path:
    """A segment whose dump does not fit into a pipe."""
    with Log(tmp_path / "long", flush="none") as log:
        log.append_many(b"%0100d" % number for number in range(5_000))
    return segments(tmp_path / "long")[0]


def test_a_reader_that_goes_away(long_segment: Path) -> None:
    with subprocess.Popen(
        command("dump", long_segment), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


def test_ctrl_c(long_segment: Path) -> None:
    """Interrupted while it waits to be read."""
    with subprocess.Popen(
        command("dump", long_segment), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in errors


def on_a_terminal(*arguments: object) -> tuple[int, bytes]:
    """Run a command with a terminal for its standard error; gives what it showed there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        shown += data
    os.close(ours)
    return process.wait(30), shown


def without(streams: str, *arguments: object) -> tuple[int, str]:
    """Run a command with these standard streams closed; what it says elsewhere."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", *command(*arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["stats", "publish", "--help", "--version", "no-such-command"])
def test_no_standard_output(name: str) -> None:
    said = "tailrace: standard output is closed; use >/dev/null\n"
    assert without(">&-", name) == (2, said)
    assert without("<&- >&-", name) == (2, said)
    assert without(">&- 2>&-", name) == (2, "")


def test_no_other_standard_streams(tmp_path: Path) -> None:
    """What is opened next does not take their place."""
    store = ("--store", tmp_path / "data")
    assert without("<&- 2>&-", "create", "q", *store)[0] == 0
    assert without("<&-", "publish", "q", *store) == (0, "published 0 messages to q\n")
    assert without("<&- 2>&-", "publish", "q", "x", *store)[0] == 0
    assert without("<&-", "delete", "q", *store)[0] == 2
    assert without("2>&-", "publish", "none", "x", *store) == (2, "")
    assert without("<&-", "read", "q", "--json", *store)[1].count('"value": "x"') == 1


@pytest.mark.parametrize("name", ["verify", "recover"])
def test_a_progress_bar_for_those_who_watch(name: str, log: Path) -> None:
    code, shown = on_a_terminal(name, log)
    assert code == 0
    assert name.encode() in shown
    assert b"\xe2\x94\x81" in shown  # the bar
    assert tailrace(name, log).stderr == ""


def test_the_commands_are_a_click_group() -> None:
    assert main.name == "main"


# --- every command --------------------------------------------------------------------------

ALL = {name: each for name, each in cli_commands().items() if not isinstance(each, click.Group)}


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_an_example(name: str) -> None:
    """Its help ends in one, whose words the command understands."""
    text = ALL[name].help or ""
    _, found, examples = text.partition("Example")
    assert found, f"{name} has no example"
    own = [line.strip() for line in examples.splitlines() if f"{name} " in line + " "]
    short = name.replace(" list", "")
    assert own or any(short in line for line in examples.splitlines()), f"{name} has no own example"
    options = {"--help", "-h"}
    for parameter in ALL[name].params:
        options.update(parameter.opts, parameter.secondary_opts)
    for line in own:
        words = line[line.index(name) + len(name) :].partition("|")[0].split()
        for word in words:
            if word.startswith("--"):
                assert word in options, f"{name} has no option {word}"


GROUPS = sorted(set(cli_commands()) - set(ALL) - {"tailrace"})


@pytest.mark.parametrize("name", GROUPS)
def test_every_group_of_commands_has_an_example(name: str) -> None:
    text = cli_commands()[name].help or ""
    assert f"  {name} " in text.partition("Example")[2]


@pytest.mark.parametrize("name", ALL)
def test_every_command_writes_json(name: str) -> None:
    """But for those that write for a shell or an editor alone."""
    options = {option for parameter in ALL[name].params for option in parameter.opts}
    assert "--json" in options or name in WRITES_ITS_OWN


WRITES_ITS_OWN = {"tailrace completion", "tailrace config check", "tailrace config schema"}


def test_the_list_of_commands_imports_none() -> None:
    code = (
        "import sys; from tailrace.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([n for n in sys.modules if n.startswith(('tailrace.cli.', 'tailrace.queue'))])\n"
        "print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["['tailrace.cli.lazy']", "False"]
    shown = dict(re.findall(r"(?m)^  ([\w-]+)  +(\S.*)$", done.stdout))
    with click.Context(main) as context:
        for name in main.list_commands(context):
            assert shown[name].endswith("."), f"{name} has no short help of its own"


# --- completion -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_completion(kind: str, shell: Shell) -> None:
    script = shell.ok("completion", kind)
    assert f"_TAILRACE_COMPLETE={kind}_complete" in script
    if kind == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_completion_of_another_shell(shell: Shell) -> None:
    assert "'tcsh' is not one of" in shell("completion", "tcsh").stderr


def completions(shell: Shell, *words: str) -> list[str]:
    """What the shell would offer for the last word."""
    line = " ".join(["tailrace", *words])
    number = str(len(words))
    done = shell(_TAILRACE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=number)
    return [each.partition(",")[2] for each in done.stdout.split()]


def test_what_is_completed(shell: Shell) -> None:
    with tailrace_package.open(shell.store) as store:
        store.queue("orders").consumer("workers").close()
        store.queue("others")
    assert completions(shell, "pu") == ["publish", "purge"]
    assert completions(shell, "publish", "o") == ["orders", "others"]
    assert completions(shell, "pending", "orders", "w") == ["workers"]
    assert completions(shell, "consume", "orders", "--group", "w") == ["workers"]
    assert completions(shell, "groups", "reset", "orders", "w") == ["workers"]
    assert "--follow" in completions(shell, "read", "--f")
    before = shell.files()
    assert completions(shell, "peek", "nothing", "w") == []
    assert shell.files() == before


def test_completion_without_a_store(shell: Shell) -> None:
    assert completions(shell, "publish", "o") == []
    assert list(shell.folder.iterdir()) == []
