# SPDX-License-Identifier: Apache-2.0
"""fa3 adopt: what it writes, what it refuses, and that nothing is left of it."""

import importlib.machinery
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import builds
import pytest

fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from fa3.commands import adopt, shims  # noqa: E402

FA3_ALONE, BOTH = ["flash-attn-3"], ["flash-attn-3", "flash-attn"]
EVERY = [*BOTH, "flash-attn-4", "ring-flash-attn"]


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return folder


def ask(site, code, **environment):
    """What code prints in a process that finds the folder site."""
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def command(capsys, *arguments):
    code = adopt.main([str(x) for x in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_names_answer_with_fa3(site):
    pytest.importorskip("torch", reason="torch is not installed")
    adopt.adopt(site, BOTH)
    said = ask(
        site,
        """
import importlib.metadata
import flash_attn, flash_attn_interface, flash_attn_3, flash_attn_3.flash_attn_interface as nested
from flash_attn.bert_padding import index_first_axis, pad_input, rearrange, unpad_input
from flash_attn.flash_attn_interface import _wrapped_flash_attn_forward, flash_attn_gpu
from flash_attn_2_cuda import varlen_bwd
from fa3.compat import flash_attn as fa2, flash_attn_interface as fa3
assert flash_attn.flash_attn_func is fa2.flash_attn_func
assert flash_attn_interface.flash_attn_func is nested.flash_attn_func is fa3.flash_attn_func
assert flash_attn_interface._flash_attn_forward is fa3._flash_attn_forward
assert flash_attn_interface.__name__ == "flash_attn_interface"
owners = importlib.metadata.packages_distributions()
print(owners["flash_attn_interface"], owners["flash_attn_3"], owners["flash_attn"])
print(flash_attn.__version__ == importlib.metadata.version("flash_attn"))
print(flash_attn_3.__version__ == importlib.metadata.version("flash_attn_3"))
for name in ("layers.rotary", "losses.cross_entropy", "ops.triton.rotary"):
    try:
        __import__(f"flash_attn.{name}")
    except ImportError as error:
        print(error)
""",
    ).splitlines()
    assert said[:3] == ["['flash-attn-3'] ['flash-attn-3'] ['flash-attn']", "True", "True"]
    for name, sentence in zip(("layers", "losses", "ops"), said[3:], strict=True):
        assert sentence.startswith(f"flash_attn.{name}: fa3 stands in for flash_attn here")


@pytest.mark.parametrize(
    "page, said",
    [
        ("transformers", "fa3\n"),
        ("training", "(1, 64, 4, 32) (1, 4, 64)\n"),
        ("diffusion", "(2, 16, 4, 64)\n"),
    ],
)
def test_the_snippet_of_a_page_on_callers_runs(site, page, said, monkeypatch, capsys):
    pytest.importorskip("torch", reason="torch is not installed")
    text = (builds.ROOT / f"docs/callers/{page}.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    if "transformers" in snippet:
        pytest.importorskip("transformers", reason="transformers is not installed")
    else:  # its snippet needs no names
        adopt.adopt(site, BOTH)
        monkeypatch.syspath_prepend(str(site))
    exec(snippet, {})
    for name in [name for name in sys.modules if name.startswith("flash_attn")]:
        del sys.modules[name]
    assert capsys.readouterr().out == said


def test_ring_flash_attn_imports_beside_any_transformers(site, capsys):
    pytest.importorskip("torch", reason="torch is not installed")
    assert command(capsys, "--into", site, "--ring-flash-attn")[0] == 0
    said = ask(
        site,
        """
import importlib.metadata
import ring_flash_attn
from ring_flash_attn import substitute_hf_flash_attn, zigzag_ring_flash_attn_varlen_qkvpacked_func
from ring_flash_attn.adapters.hf_adapter import update_ring_flash_attn_params
from ring_flash_attn.zigzag_ring_flash_attn import zigzag_ring_flash_attn_func
from fa3.compat import ring_flash_attn as ours
assert zigzag_ring_flash_attn_func is ours.zigzag_ring_flash_attn_func
print(ring_flash_attn.__version__ == importlib.metadata.version("ring-flash-attn"))
""",
    )
    assert said == "True\n"
    assert command(capsys, "--into", site, "--undo")[0] == 0 and files_in(site) == []


@pytest.mark.parametrize("beside", [[], ["--flash-attn"]], ids=["alone", "beside flash_attn"])
def test_flash_attn_cute_answers_with_fa3(site, capsys, beside):
    pytest.importorskip("torch", reason="torch is not installed")
    assert command(capsys, "--into", site, "--flash-attn-4", *beside)[0] == 0
    said = ask(
        site,
        """
import importlib.metadata
import torch
import flash_attn.cute
from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
from flash_attn.cute.interface import flash_attn_func as nested
from fa3.compat import flash_attn_4 as ours
assert flash_attn_func is nested is ours.flash_attn_func
assert flash_attn_varlen_func is ours.flash_attn_varlen_func
print(flash_attn.cute.__version__ == importlib.metadata.version("flash-attn-4"))
q = torch.randn(1, 8, 2, 32)
out, lse = flash_attn_func(q, q, q, causal=True, window_size=(None, None))
print(tuple(out.shape), tuple(lse.shape))
""",
    )
    assert said == "True\n(1, 8, 2, 32) (1, 2, 8)\n"
    assert command(capsys, "--into", site, "--undo")[0] == 0 and files_in(site) == []


def test_the_names_depend_on_fa3_and_say_when_it_is_gone(site):
    adopt.adopt(site, EVERY)
    for found in importlib.metadata.distributions(path=[str(site)]):
        assert found.requires == ["fa3"]
    without_fa3 = """
import sys
class Gone:
    def find_spec(name, *_):
        if name == "fa3":
            raise ModuleNotFoundError("No module named 'fa3'", name=name)
sys.meta_path.insert(0, Gone)
import flash_attn
"""
    done = subprocess.run(
        [sys.executable, "-c", without_fa3],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert re.search(
        "ModuleNotFoundError: flash_attn.flash_attn_interface: expected fa3, .* but fa3 is not "
        "installed; install fa3, or pip uninstall flash-attn\n$",
        done.stderr,
    ), done.stderr


def test_undo_leaves_nothing_also_after_imports_and_a_second_adoption(site, capsys):
    other = site / "other.py"
    other.write_text("x = 1\n")
    code, said, _ = command(capsys, "--into", site, "--flash-attn")
    assert code == 0 and f"wrote {site / 'flash_attn_interface.py'}" in said
    assert {line.split(" ", 1)[1] for line in said.splitlines()[:-1]} == {
        str(path) for path in files_in(site) if path != other
    }
    first = files_in(site)
    assert command(capsys, "--into", site, "--flash-attn")[0] == 0
    assert files_in(site) == first
    ask(site, "import flash_attn_3, other", PYTHONDONTWRITEBYTECODE="")
    assert files_in(site) != first, "expected compiled files"
    code, said, _ = command(capsys, "--into", site, "--undo")
    assert code == 0 and said.count("removed") == len(first) - 1
    assert {path.name.split(".")[0] for path in files_in(site)} == {"other"}
    assert not (site / "flash_attn").exists() and not (site / "flash_attn_3").exists()
    assert "nothing that fa3 adopt wrote" in command(capsys, "--into", site, "--undo")[1]


def test_undo_keeps_what_somebody_changed(site, capsys):
    adopt.adopt(site, FA3_ALONE)
    changed = site / "flash_attn_interface.py"
    changed.write_text("# mine\n")
    said = command(capsys, "--into", site, "--undo")[1]
    assert f"kept, changed since: {changed}" in said
    assert files_in(site) == [changed]


def interrupted_after(count, monkeypatch, error):
    """Makes the write of the file after so many fail; 0: the first."""
    opened = Path.open
    left = [count]

    def stop(path, mode="r", *arguments, **named):
        if mode == "xb":
            if left[0] == 0:
                raise error
            left[0] -= 1
        return opened(path, mode, *arguments, **named)

    monkeypatch.setattr(Path, "open", stop)


FILES = len(adopt.with_metadata("flash-attn-3", shims.modules("flash-attn-3", False)))


def test_ctrl_c_leaves_nothing(site, monkeypatch):
    for count in range(FILES):
        with monkeypatch.context() as patched:
            interrupted_after(count, patched, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                adopt.adopt(site, FA3_ALONE)
        assert list(site.iterdir()) == []


@pytest.mark.parametrize("repeats", [False, True])
def test_a_kill_can_be_undone_and_repeated(site, monkeypatch, repeats):
    for count in range(FILES + 1):
        with monkeypatch.context() as patched:
            interrupted_after(count, patched, SystemExit())
            patched.setattr(adopt, "remove", lambda site, paths: None)  # a kill removes nothing
            if count < FILES:
                with pytest.raises(SystemExit):
                    adopt.adopt(site, FA3_ALONE)
            else:
                adopt.adopt(site, FA3_ALONE)
        assert len(files_in(site)) == count
        if repeats:
            adopt.adopt(site, FA3_ALONE)
            assert len(files_in(site)) == FILES
        adopt.undo(site, FA3_ALONE)
        assert list(site.iterdir()) == [], count


def test_a_file_that_a_kill_left_empty_is_removed(site):
    adopt.adopt(site, FA3_ALONE)
    (site / "flash_attn_interface.py").write_text("")
    (next(site.glob("*.dist-info")) / "INSTALLER").write_text("")
    adopt.undo(site, FA3_ALONE)
    assert list(site.iterdir()) == []


def test_undo_removes_nothing_that_it_did_not_write(site, tmp_path):
    adopt.adopt(site, FA3_ALONE)
    outside, inside = tmp_path / "precious.txt", site / "other.py"
    behind = tmp_path / "behind"
    behind.mkdir()
    for file in (outside, inside, behind / "x.py"):
        file.write_text("mine\n")
    (site / "link").symlink_to(behind)
    record = next(site.glob("*.dist-info")) / "RECORD"
    hashed = adopt.digest(b"mine\n")
    with record.open("a") as rows:
        for file in ("../precious.txt", str(outside), "other.py", "link/x.py"):
            rows.write(f"{file},,\n")
        for file in ("../precious.txt", str(outside), "link/x.py"):
            rows.write(f"{file},{hashed},5\n")
    adopt.undo(site, FA3_ALONE)
    assert all(file.exists() for file in (outside, inside, behind / "x.py"))
    assert sorted(path.name for path in site.iterdir()) == ["link", "other.py"]


def test_links_are_not_written_through(site, tmp_path, capsys):
    victim, folder = tmp_path / "victim.py", tmp_path / "folder"
    folder.mkdir()
    link = site / "flash_attn_interface.py"
    link.symlink_to(victim)  # dangling
    code, _, error = command(capsys, "--into", site)
    assert code == 2 and f"{link} is there already" in error
    link.unlink()
    (site / "flash_attn_3").symlink_to(folder)
    code, _, error = command(capsys, "--into", site)
    assert code == 2 and "expected a folder, got a link" in error
    assert not victim.exists() and list(folder.iterdir()) == []
    assert [path.name for path in site.iterdir()] == ["flash_attn_3"]


def test_a_changed_file_is_not_written_over(site, capsys):
    adopt.adopt(site, FA3_ALONE)
    changed = site / "flash_attn_interface.py"
    changed.write_text("# mine\n")
    before = files_in(site)
    code, _, error = command(capsys, "--into", site)
    assert code == 2 and f"{changed} was changed since" in error
    assert files_in(site) == before and changed.read_text() == "# mine\n"


def test_pip_knows_and_removes_it(tmp_path):
    # Looked up past the import hooks: to who asks for pip setuptools gives no distutils of its own.
    pip = importlib.machinery.PathFinder.find_spec("pip")
    if pip is None:
        pytest.skip("pip is not installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    adopt.adopt(site, BOTH)
    before = files_in(site)
    environment = {**os.environ, "PYTHONPATH": str(Path(pip.origin).parent.parent)}
    for name in BOTH:
        done = subprocess.run(
            [python, "-m", "pip", "uninstall", "-y", name],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert f"Successfully uninstalled {name}" in done.stdout, done.stderr
    assert before and files_in(site) == []


def original(site, name="flash_attn_3", installer="pip"):
    folder = site / f"{name}-3.0.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.0.0\n")
    (folder / "INSTALLER").write_text(installer)
    (folder / "RECORD").touch()


def test_an_installed_original_is_refused_wherever_it_is(site, tmp_path, capsys, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    original(elsewhere)
    monkeypatch.syspath_prepend(str(elsewhere))
    code, _, error = command(capsys, "--into", site)
    assert code == 2 and files_in(site) == []
    assert error.startswith("fa3 adopt: flash-attn-3 3.0.0 is installed in")
    assert "pip uninstall flash-attn-3 first" in error


@pytest.mark.parametrize("file", ["flash_attn_interface.py", "flash_attn_3/__init__.py"])
def test_a_module_of_the_name_is_refused(site, file, capsys):
    (site / file).parent.mkdir(exist_ok=True)
    (site / file).write_text("# built in place\n")
    code, _, error = command(capsys, "--into", site)
    assert code == 2 and f"is there already, in {site / file}" in error
    assert files_in(site) == [site / file]


def test_flash_attention_4_is_no_obstacle(site):
    """flash_attn.cute, without a flash_attn/__init__.py."""
    cute = site / "flash_attn" / "cute" / "__init__.py"
    cute.parent.mkdir(parents=True)
    cute.write_text("here = True\n")
    adopt.adopt(site, BOTH)
    assert (site / "flash_attn" / "__init__.py").exists()
    adopt.undo(site, BOTH)
    assert [path for path in files_in(site) if path.suffix == ".py"] == [cute]


def test_a_folder_that_cannot_be_written_to_is_a_sentence_and_stays_as_it_was(
    site, capsys, monkeypatch
):
    interrupted_after(2, monkeypatch, OSError(30, "Read-only file system"))
    code, said, error = command(capsys, "--into", site)
    assert (code, said, files_in(site)) == (2, "", [])
    assert "can be written to, got Read-only file system" in error
    code, _, error = command(capsys, "--into", site / "nowhere")
    assert code == 2 and "got no such folder" in error


def test_the_form_of_wan_returns_tuples():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    names = {}
    exec(shims.modules("flash-attn-3", returns_tuple=True)["flash_attn_interface.py"], names)
    x, cu = torch.ones(6, 2, 8), torch.tensor([0, 3, 6], dtype=torch.int32)
    qkv, lengths = dict.fromkeys("qkv", x), dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), cu)
    longest = {"max_seqlen_q": 3, "max_seqlen_k": 3, "seqused_q": None, "seqused_k": None}
    call = names["flash_attn_varlen_func"]
    out = call(**qkv, **lengths, **longest, causal=False, deterministic=False)[0]
    assert out.unflatten(0, (2, 3)).shape == (2, 3, 2, 8)


def test_hub_kernel_is_loaded_by_kernels(tmp_path, capsys):
    folder = tmp_path / "hub"
    assert command(capsys, "--hub-kernel", folder)[0] == 0
    assert [path.name for path in files_in(folder)] == ["__init__.py", "metadata.json"]
    code, _, error = command(capsys, "--hub-kernel", folder)
    assert code == 2 and "expected no folder build in it yet" in error
    kernels = pytest.importorskip("kernels", reason="kernels is not installed")
    loaded = kernels.get_local_kernel(folder)
    from fa3.compat import flash_attn_interface as ours

    for name in ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"):
        assert getattr(loaded, name) is getattr(ours, name)
    assert loaded.flash_attn_interface._flash_attn_forward is ours._flash_attn_forward


def test_the_command_adopts_without_the_c_plus_plus_build(tmp_path):
    said = subprocess.run(
        [sys.executable, "-m", "fa3", "adopt", "--into", tmp_path], capture_output=True, text=True
    )
    assert said.returncode == 0 and "fa3 answers to flash-attn-3 here" in said.stdout
    assert importlib.metadata.Distribution.at(
        next(tmp_path.glob("*.dist-info"))
    ).version.startswith("3.0.0")
