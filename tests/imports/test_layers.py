"""Import statements against the layer table of the architecture (section 3).

Documented differences from that table:
- in a backend's folder, torch may be imported by build.py and by files named torch_*.py;
- testing/ makes programs and devices, so it may import ir and spec besides the public API;
- cli/ and bench/ are the top: they may look at everything but a backend's folder, because explain and draw show it;
- NumPy is for evaluate.py and what computes with it (constant folding, the check of a callback's derivative), and for
  structure/, which classifies blocks by the thousand;
- mods/ may import trace, which records graph callbacks;
- oracle/ asks about the graphs that the cudnn backend makes, so it imports that backend's plain modules; its child.py runs in
  a process of its own and imports cudnn;
- ops.py and the front ends' own integrations stand above the core: ops records through trace, integrations use mods.
"""

from imports.sources import FRAMEWORKS, NAMES, imported, modules, short

ZERO = ("errors", "config", "logs", "dtypes", "version")
CORE = (*ZERO, "ir", "structure", "trace", "spec", "eligibility", "plans")
ORACLE = ("backends.cudnn", "backends.protocol", "mods", "ops", "oracle")
PUBLIC = ("errors", "config", "version", "engine", "explain", "ops", "mods", "dtypes", "torch", "jax", "testing", "bench", "cli")

MAY_IMPORT = {
    **dict.fromkeys(ZERO, ZERO),
    "ir": (*ZERO, "ir"),
    "structure": (*ZERO, "ir", "structure"),
    "trace": (*ZERO, "ir", "structure", "trace"),
    "spec": (*ZERO, "ir", "structure", "spec"),
    "eligibility": (*ZERO, "ir", "structure", "trace", "spec", "eligibility"),
    "plans": (*ZERO, "ir", "structure", "trace", "spec", "plans"),
    "backends": (*CORE, "backends.protocol"),
    "engine": (*CORE, "backends.protocol", "backends.catalogue"),
    "explain": (*CORE, "backends.protocol", "backends.catalogue", "engine"),
    "ops": (*ZERO, "trace", "ops"),
    "torch": (*CORE, "backends.protocol", "backends.catalogue", "engine", "explain", "ops", "mods", "torch"),
    "jax": (*CORE, "backends.protocol", "backends.catalogue", "engine", "explain", "ops", "mods", "jax"),
    "mods": ("errors", "ops", "trace", "mods"),
    "testing": (*PUBLIC, "ir", "spec"),
    "bench": PUBLIC,
    "oracle": (*CORE, *ORACLE),
    "cli": (*PUBLIC, *CORE, "oracle"),
    "__init__": PUBLIC,
    "__main__": ("cli",),
}
"""Part of the package -> the parts that it may import."""

MAY_USE_TORCH = ("torch", "cli", "bench", "testing")
MAY_USE_NUMPY = (
    "ir/evaluate.py", "ir/simplify.py", "trace/callback_check.py", "structure", "ops", "mods", "testing", "bench", "cli", "torch",
    "backends", "oracle/programs.py",
)  # fmt: skip


def part_of(path):
    """The row of the table that a file belongs to."""
    return short(path).split("/")[0].removesuffix(".py")


def parts_imported(path):
    """The parts of flexsdpa that a file imports; of backends, with the module."""
    for name in sorted(imported(path)):
        words = name.split(".")
        if words[0] != "flexsdpa" or len(words) < 2 or f"flexsdpa.{words[1]}" not in NAMES:
            continue
        yield ".".join(words[1:3]) if words[1] == "backends" and len(words) > 2 else words[1]


def allowed(path, part):
    mine = part_of(path)
    if mine != "backends":
        return part in MAY_IMPORT[mine]
    folder = short(path).split("/")[1].removesuffix(".py")
    own = (f"backends.{folder}",) if folder not in ("protocol", "__init__") else ()
    every = (
        tuple(name for name in (".".join(n.split(".")[1:3]) for n in NAMES if n.startswith("flexsdpa.backends.")))
        if folder == "catalogue"
        else ()
    )
    return part in (*MAY_IMPORT["backends"], *own, *every)


def violations():
    return {(part_of(path), part, short(path)) for path in modules() for part in parts_imported(path) if not allowed(path, part)}


def test_every_file_belongs_to_a_row_of_the_table():
    assert {part_of(path) for path in modules()} <= set(MAY_IMPORT)


def test_imports_follow_the_layers():
    found = {(file, part) for _, part, file in violations()}
    assert not found, "imports against the layer table: " + ", ".join(f"{file} imports {part}" for file, part in sorted(found))


def test_siblings_do_not_import_each_other():
    for path in modules():
        mine, parts = part_of(path), set(parts_imported(path))
        assert not (mine == "trace" and "spec" in parts), short(path)
        assert not (mine == "spec" and "trace" in parts), short(path)
        assert not (mine == "eligibility" and "plans" in parts), short(path)
        assert not (mine == "torch" and "jax" in parts), short(path)


def test_backends_do_not_import_each_other():
    for path in modules():
        words = short(path).split("/")
        if words[0] == "backends" and len(words) > 2:
            others = {part for part in parts_imported(path) if part.startswith("backends.")} - {
                f"backends.{words[1]}",
                "backends.protocol",
            }
            assert not others, f"{short(path)} imports {others}"


def test_only_the_catalogue_names_backends():
    for path in modules():
        if part_of(path) in ("backends", "oracle"):
            continue
        named = {part for part in parts_imported(path) if part.startswith("backends")} - {
            "backends.catalogue",
            "backends.protocol",
        }
        assert not named, f"{short(path)} imports {named}"


def may_use_a_framework(path):
    name = path.name
    in_a_backend = part_of(path) == "backends" and len(short(path).split("/")) > 2
    if in_a_backend:
        return name in ("build.py", "handles.py") or name.startswith("torch_")
    return part_of(path) in MAY_USE_TORCH or part_of(path) == "jax" or short(path) == "oracle/child.py"


def test_frameworks_are_imported_only_where_something_is_built_or_run():
    for path in modules():
        found = {name.split(".")[0] for name in imported(path)} & set(FRAMEWORKS)
        assert not found or may_use_a_framework(path), f"{short(path)} imports {found}"


def test_torch_files_of_a_backend_are_imported_only_by_their_own_kind():
    """So that rules.py and lower.py stay plain Python: only build.py and torch_*.py lead to torch."""
    for path in modules():
        leads = {name for name in imported(path) if ".torch_" in name and name.startswith("flexsdpa.backends.")}
        assert not leads or may_use_a_framework(path), f"{short(path)} imports {leads}"


def numpy_files():
    return {short(path) for path in modules() if any(name.split(".")[0] == "numpy" for name in imported(path))}


def may_use_numpy(file):
    return file in MAY_USE_NUMPY or file.split("/")[0].removesuffix(".py") in MAY_USE_NUMPY


def test_numpy_is_used_only_where_the_table_says():
    assert not {file for file in numpy_files() if not may_use_numpy(file)}


def test_imports_are_absolute():
    for path in modules():
        assert not {name for name in imported(path) if name.startswith(".")}, short(path)
