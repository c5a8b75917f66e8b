"""Check that every docstring is a sentence that stands by itself, and that the names it puts in backticks exist.

Run by `make check`; arguments are files or folders to check instead of all source roots. The rules:

- A function's docstring begins with a verb in the imperative, such as "Return" or "Check".
- A class's docstring begins with an article; so does a property's, or with "Whether" or a shape such as "(n, d)".
- No docstring begins with a word that refers to its neighbour, such as "Likewise" or "As".
- A name in single backticks is defined or imported in the file, or is found from a package of this project.
"""

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("custom", "deploy", "data_prep", "evaluation", "cli")
ARTICLES = ("A", "An", "The")
VERB_TEXT = """
Abort Accept Accumulate Act Add Adjust Aggregate Align Allocate Allow Answer Append Apply Approve Approximate Ask
Assemble Assign Attach Augment Average Await Balance Begin Bind Blend Block Bootstrap Bound Bring Broadcast Build
Cache Calibrate Call Cancel Cap Carry Cast Change Check Choose Clamp Classify Clean Clear Clip Close Collapse
Collect Combine Commit Compare Compile Complete Compose Compress Compute Concatenate Configure Confirm Connect
Construct Continue Convert Copy Correct Count Countersign Cover Create Crop Cut Deal Decide Declare Decode Decorate
Decrypt Deduplicate Define Delay Delete Deliver Deploy Derive Describe Deserialize Detach Detect Determine Disable
Discard Display Distribute Divide Do Download Draw Drop Dump Embed Emit Enable Encode Encrypt End Enforce Enrol
Ensure Enter Enumerate Erase Estimate Evaluate Exchange Exclude Execute Exit Expand Explain Export Expose Extend
Extract Fail Fetch Fill Filter Find Finish Fire Fit Flag Flatten Flip Fold Forbid Force Forget Forge Fork Format
Forward Gather Generate Get Give Group Grow Guard Guess Halve Handle Hash Have Hide Hold Identify Ignore Implement
Import Include Increase Infer Initialise Initialize Inject Insert Inspect Install Interpolate Interpret Inventory
Invert Issue Iterate Join Judge Keep Kill Label Launch Lay Learn Leave Let Limit Link List Load Locate Lock Log
Look Lower Make Map Mark Mask Match Measure Memoise Memory-map Merge Migrate Minimise Minimize Mirror Mix Model
Modify Monitor Move Multiply Name Normalise Normalize Note Notify Observe Obtain Offer Omit Open Order Override
Overwrite Pack Pad Parse Partition Pass Pause Pay Perform Permit Permute Pick Place Play Plot Pool Post Predict
Prepare Preserve Print Probe Process Produce Project Propose Protect Prove Provide Provision Prune Publish Pull Put
Query Queue Quote Raise Rank Re-sample Read Rebuild Receive Recompute Reconstruct Record Recover Redact Reduce
Refer Refuse Register Rehearse Reject Release Reload Relabel Remember Remind Remove Rename Render Renew Repeat
Replace Replay Reply Report Request Require Resample Rescale Reset Reshape Resize Resolve Restart Restore Restrict
Resume Retrain Retry Return Reuse Reverse Revoke Reward Rewrite Rotate Round Route Run Sample Save Scale Scan
Schedule Score Search Select Send Separate Serve Set Share Shift Shorten Show Shuffle Shut Sign Simulate Skip Sleep
Slice Smooth Solve Sort Split Standardise Start State Stop Store Stream Strip Submit Subtract Suggest Sum Summarise
Summarize Supervise Suspend Swap Switch Take Tell Terminate Test Time Touch Trace Track Train Transform Translate
Trim Truncate Try Tune Turn Undo Uninstall Unpack Unregister Update Upload Use Validate Verify Visit Vote Wait Wake
Walk Warn Warp Watch Weigh Weight Withdraw Withhold Wrap Write Yield Zero
"""
VERBS = frozenset(VERB_TEXT.split())
NEIGHBOURS = re.compile(r"(Likewise|As|Those|These|Its|Their|His|Of|That|Also|Same|It|The rest|The same|The others?)\b")
SHAPE = re.compile(r"\([\w.,+*/^() -]*\)|``\(")
REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


def source_files(arguments: list[str]) -> list[Path]:
    """Return the Python files below the arguments, or below all source roots if there are none."""
    paths = [Path(argument).resolve() for argument in arguments] or [ROOT / name for name in SOURCES]
    return sorted(file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py")))


def find_faults(file: Path) -> Iterator[str]:
    """Yield one line for each docstring of a file that breaks a rule."""
    tree = parse(file)
    names = module_names(file)
    where = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else str(file)
    for node, known in walk_definitions(tree, names):
        text = ast.get_docstring(node, clean=True)
        if not text:
            continue
        line = getattr(node, "lineno", 1)
        if fault := check_opening(node, text):
            yield f"{where}:{line}: {fault}: {text.splitlines()[0]!r:.90}"
        for reference in REFERENCE.findall(text):
            if not is_defined(reference, known):
                yield f"{where}:{line}: `{reference}` is not defined here; name it as package.module.name, or quote it"


def check_opening(node: Definition, text: str) -> str | None:
    """Return what is wrong with the first words of a docstring, or None."""
    first = text.split()[0].rstrip(",.:;")
    if NEIGHBOURS.match(text):
        return f"begins with {first!r}, which refers to a neighbour"
    if isinstance(node, ast.Module):
        return None
    if isinstance(node, ast.ClassDef):
        return None if first in ARTICLES else "a class's docstring begins with an article"
    if is_property(node):
        good = first in (*ARTICLES, "Whether") or first in VERBS or SHAPE.match(text)
        return None if good else "a property's docstring begins with an article, a shape or 'Whether'"
    return None if first in VERBS else "a function's docstring begins with a verb"


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is decorated as a property."""
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def walk_definitions(tree: ast.Module, names: frozenset[str]) -> Iterator[tuple[Definition, frozenset[str]]]:
    """Yield the module and its public and private definitions, each with the names that its docstring may use."""
    yield tree, names
    stack: list[tuple[ast.AST, frozenset[str]]] = [(tree, names)]
    while stack:
        parent, known = stack.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = frozenset(a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg))
                yield node, known | arguments
                stack.append((node, known | arguments))
            elif isinstance(node, ast.ClassDef):
                members = known | class_members(node)
                yield node, members
                stack.append((node, members))
            else:
                stack.append((node, known))


def class_members(node: ast.ClassDef) -> frozenset[str]:
    """Return the names that a class body defines."""
    return frozenset(name for child in node.body for name in defined_names(child))


def defined_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that one statement defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in aliases)
        case ast.If() | ast.Try() | ast.With():
            yield from (name for child in ast.iter_child_nodes(node) for name in defined_names(child))


@cache
def parse(file: Path) -> ast.Module:
    """Parse a file once."""
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def module_names(file: Path) -> frozenset[str]:
    """Return every name that a module defines, imports anywhere, or gives to a member of a class of its own."""
    names = set(dir(builtins)) | {file.stem}
    for node in ast.walk(parse(file)):
        names.update(defined_names(node))
    return frozenset(names)


@cache
def project_modules() -> dict[str, Path]:
    """Return the file of every module and package of this project, by dotted name."""
    modules = {}
    for root in (ROOT / name for name in SOURCES):
        for file in root.glob("*/**/*.py"):
            parts = file.relative_to(root).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


@cache
def project_names() -> frozenset[str]:
    """Return every name that some module of this project defines."""
    return frozenset(name for file in project_modules().values() for name in module_names(file))


@cache
def imported_packages() -> frozenset[str]:
    """Return the top-level packages that some module of this project imports."""
    nodes = [node for file in project_modules().values() for node in ast.walk(parse(file))]
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return frozenset(name.split(".")[0] for name in whole | parts)


def is_defined(reference: str, known: frozenset[str]) -> bool:
    """Return whether a reference is a module of this project, a name in one, or a name that is known here."""
    modules = project_modules()
    head, *members = reference.split(".")
    if any(name == head or name.startswith(f"{head}.") for name in modules):
        parts = [head, *members]
        for length in range(len(parts), 0, -1):
            if (module := ".".join(parts[:length])) in modules:
                return set(parts[length:]) <= module_names(modules[module]) | {parts[length - 1]}
        return True
    if members and (head in sys.stdlib_module_names or head in imported_packages()):
        return True  # another package's name, which only an import could find
    return head in known and all(member in project_names() for member in members[:1])


def main(arguments: list[str]) -> int:
    """Print the faults of the files below the arguments; return 1 if there are any."""
    faults = [fault for file in source_files(arguments) for fault in find_faults(file)]
    print("\n".join(faults), end="\n" if faults else "")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
