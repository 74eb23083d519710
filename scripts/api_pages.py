#!/usr/bin/env python3
"""Writes the pages in docs/api/ from the comments of the public headers.

    scripts/api_pages.py [--check] [TREE]

Writes one page for each header of HEADERS, and the list of pages. --check compares the pages with the headers, and
fails if they differ. TREE is the root of the tree (default: this repository).

A page shows each public declaration and then its comment. The parser expects the format of this repository: comments
with /// or /** before a declaration, and a file comment at the top. A comment describes all declarations up to the next
blank line or comment. Private members, bodies of functions, and functions that are deleted are left out.
"""
import re
import sys
import textwrap
from pathlib import Path

# Declarations of the implementation of templates, which have no text.
INTERNAL = {"Avx2Entry", "Avx512Entry", "LoopsOf"}

# The headers that have a page, in the order of the list. Other public headers are only included by these ones.
HEADERS = {
    "Train a model": ["engine/engine.h", "engine/options.h", "engine/scope.h", "engine/run/memory/pointer_slot.h",
                      "engine/view_slot.h", "engine/plan/activations.h", "engine/run/memory/guard_range.h"],
    "C": ["include/aliquot/c.h", "include/aliquot/version.h"],
    "Ranks": ["sharding/world.h", "sharding/topology.h", "sharding/split.h", "sharding/nccl/nccl_options.h",
              "sharding/comm/communicator.h", "sharding/memory/symmetric_buffer.h"],
    "Optimizers": ["optim/optimizer.h", "optim/loss_scaler.h", "optim/custom_rule.h", "optim/custom_rule_cuda.h",
                   "optim/rule.h"],
    "Checkpoints": ["checkpoint/save.h", "checkpoint/load.h", "checkpoint/background_saver.h",
                    "checkpoint/weights/load_weights.h", "sharding/state.h"],
    "Errors and messages": ["kernels/system/error.h", "kernels/system/checkpoint_error.h", "kernels/system/log.h"],
    "Devices and memory": ["kernels/device/device.h", "kernels/device/stream.h", "kernels/system/ledger.h",
                           "kernels/formats/dtype.h"],
    "Layers of tensor groups": ["kernels/layers/split_layers.h", "kernels/layers/layer_rows.h"],
    "The plan": ["engine/plan/plan_line.h", "engine/plan/policy.h", "engine/plan/mesh.h", "engine/plan/pass_order.h",
                 "engine/plan/model_spec.h", "engine/plan/schedule.h", "engine/cost/simulate.h",
                 "engine/plan/timeline.h"],
    "LibTorch": ["libtorch/call.h", "libtorch/sharded_module.h"],
}


# Public headers without a page: the implementation of templates and of the headers above.
WITHOUT_PAGE = """
    kernels/system/booking.h kernels/device/enqueue_cuda.h kernels/device/launch_cuda.h
    kernels/device/start_kernel_cuda.h kernels/formats/float16.h kernels/formats/host_device.h
    kernels/elementwise/host_loops.h kernels/elementwise/kernels.h kernels/formats/philox.h
    kernels/formats/split_master.h kernels/formats/values.h kernels/device/task.h sharding/layout.h
    sharding/comm/reduce_staging.h optim/custom_loops.h optim/update/dynamic_code.h optim/update/stochastic.h
    optim/update/plain_blocks.h optim/update/update.h optim/update/update_cuda.h optim/update/update_host.h
    optim/update/update_loop.h optim/update/update_quantised.h optim/update/update_streams.h
    optim/update/update_tables.h checkpoint/file/io_lane.h checkpoint/snapshot.h engine/plan/matrix_groups.h
    engine/plan/roles.h engine/plan/verbs.h libtorch/module_registry.h libtorch/module_units.h
    libtorch/engine_parameter.h
""".split()


def refuse_unlisted(tree):
    """Fails if a public header is in neither list, or if a list names a header that is not public."""
    cmake = (tree / "cmake/AliquotPublicHeaders.cmake").read_text()
    public = set(re.search(r"set\(aliquot_public_headers(.*?)\)", cmake, re.S).group(1).split())
    listed = {h for group in HEADERS.values() for h in group if not h.startswith("include/")} | set(WITHOUT_PAGE)
    for header in sorted(public ^ listed):
        what = "is a public header without a page" if header in public else "is not a public header"
        print(f"{header}: {what}: change HEADERS or WITHOUT_PAGE of scripts/api_pages.py")
    if public != listed:
        sys.exit(1)


def installed(header):
    """Returns the path by which a program includes the header, as cmake/copy_public_headers.cmake computes it."""
    place = re.sub(r"^include/aliquot/", "", header)
    return "aliquot/" + re.sub(r"^(checkpoint|optim)/.+/", r"\1/", place)


def code_lines(text):
    """Yields (line, comment, code): `comment` is the text of a comment that is alone on its line, or None."""
    inside = None
    for line in text.splitlines():
        bare = line.strip()
        if inside is not None:
            inside_ends = bare.endswith("*/")
            content = re.sub(r"^\* ?", "", re.sub(r" ?\*/$", "", bare))
            yield line, content, ""
            inside = None if inside_ends else inside
        elif bare.startswith("///"):
            yield line, re.sub(r"^/// ?", "", bare), ""
        elif bare.startswith("/**"):
            inside = None if bare.endswith("*/") else "doc"
            yield line, re.sub(r" ?\*/$", "", re.sub(r"^/\*\* ?", "", bare)), ""
        else:
            yield line, None, line


def file_comment(text):
    """Returns the comment at the top of a header, and the text after it."""
    lines = text.splitlines()
    at = 0
    while at < len(lines) and (not lines[at].strip() or lines[at].startswith("#pragma once")):
        at += 1
    found = []
    if at < len(lines) and lines[at].startswith("/*") and not lines[at].startswith("/**"):
        while True:
            line = lines[at].strip()
            at += 1
            found.append(re.sub(r"^(/\*|\*(?!/)) ?", "", re.sub(r" ?\*/$", "", line)))
            if line.endswith("*/"):
                break
    else:
        while at < len(lines) and re.match(r"//(?!/)", lines[at]):
            found.append(re.sub(r"^// ?", "", lines[at]))
            at += 1
    # Some headers have the includes first.
    while found and not found[-1]:
        found.pop()
    return found, "\n".join(lines[at:])


def without_strings(code):
    return re.sub(r"\"(\\.|[^\"\\])*\"|'(\\.|[^'\\])*'", lambda m: "_" * len(m.group()), code)


def without_comment(code):
    """Removes the comments from one line."""
    bare = without_strings(code)
    while (comment := re.search(r"\s*/\*.*?\*/", bare)) is not None:
        bare, code = (text[:comment.start()] + text[comment.end():] for text in (bare, code))
    cut = re.search(r"//|/\*", bare)
    return code[:cut.start()] if cut else code


def without_comments(text):
    return "\n".join(map(without_comment, text.splitlines()))


class Declaration:
    """Consecutive declarations with one comment. `members` are those of a class."""

    def __init__(self, comment):
        self.comment, self.code, self.members, self.name, self.kind = comment, [], None, "", ""


def without_arguments(code):
    """Removes the arguments of templates."""
    before = None
    while before != code:
        before, code = code, re.sub(r"<[^<>]*>", "", code)
    return code


def is_function(code):
    return re.match(r"[^=]*[\w=]\(", without_arguments(without_strings(without_comment(code)))) is not None


def head_of_function(code):
    """Returns the declaration of a function without its body and its initializers."""
    if re.match(r"\s*(template <[^>]*>\s*)?concept\b", code):
        return code
    code = "\n".join(without_comment(line).rstrip() for line in code.splitlines() if not re.match(r"#(if|else|elif|endif)", line))
    bare = without_strings(code)
    depth = 0
    for i, letter in enumerate(bare):
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif depth == 0 and letter == "{" and ")" in bare[:i] and not re.search(r"=\s*$", bare[:i]):
            return code[:i].rstrip() + ";"
        elif depth == 0 and letter == ":" and bare[i - 1:i] != ":" and bare[i + 1:i + 2] != ":" and ")" in bare[:i]:
            return code[:i].rstrip() + ";"
    return code.rstrip()


FRIEND_LINE = re.compile(r"\n\n?\s*friend bool operator==[^;]*;")
DELETED = re.compile(r"=\s*delete\s*;|^\s*(class|struct) \w+;$|^\s*friend\s+(class|struct)\b")
OUT_OF_LINE = re.compile(r"\w+::~?\w+$")
HIDDEN = re.compile(r"=\s*default\s*;|^\s*(virtual\s+)?~\w+|^\s*friend bool operator==")
CLASS = re.compile(r"^\s*(?:template <.*>\s*)?(class|struct|union|enum class|enum)\b\s*(?:alignas\(\w+\)\s*)?(\w+)?[^;()]*\{")
TYPEDEF = re.compile(r"^\s*typedef (struct|enum) (\w+) \{")


def statements(lines):
    """Splits lines into (comment lines, code lines of one declaration or None for a blank line)."""
    comment, code, depth = [], [], 0
    for line, text, rest in lines:
        if text is not None and not code:
            comment.append(text)
            continue
        if not code and not rest.strip():
            yield comment, None
            comment = []
            continue
        if not code and re.match(r"\s*(#(?!define)|namespace\b|extern \"C\"|\}|//|/\*)", line):
            yield comment, [line]
            comment = []
            continue
        code.append(line)
        bare = without_strings(without_comment(rest if text is None else ""))
        depth += sum(bare.count(c) for c in "{([") - sum(bare.count(c) for c in "})]")
        ends = bare.rstrip().endswith((";", "}", ":")) or (re.match(r"\s*#|\s*/[/*]", line) and not line.endswith("\\"))
        if depth == 0 and ends:
            yield comment, code
            comment, code = [], []


def parse(lines, in_class=False, visible=True):
    """Returns the declarations of a namespace or of a class."""
    found, current = [], None
    for comment, code in statements(lines):
        if code is None:
            current = None
            if comment and visible:
                current = Declaration(comment)
                found.append(current)
                current = None
            continue
        first = code[0].strip()
        if in_class and re.match(r"(public|private|protected):", first):
            visible, current = first.startswith("public"), None
            continue
        skip = re.match(r"#|namespace |extern \"C\"|\}|using namespace|//|/\*(?!\*)", first)
        if first.startswith("#define") and (comment or (current and current.code[0].startswith("#define"))):
            skip = None
        if skip or not visible:
            if first.startswith("/*") and re.search(r"-{10}", first):
                section = Declaration([])
                section.kind, section.name = "section", re.sub(r"^/\* | -+ ?\*/$", "", first)
                found.append(section)
            current = None if skip else current
            continue
        text = "\n".join(code)
        whole = " ".join(code)
        is_class = CLASS.match(whole) or TYPEDEF.match(whole)
        if not is_class and (DELETED.search(text) or (HIDDEN.search(text) and not comment) or
                             OUT_OF_LINE.search(without_arguments(without_comments(text)).split("(")[0].rstrip())):
            continue
        field = in_class and not is_function(text)
        if comment or current is None or (field and current.comment):
            current = Declaration(comment)
            found.append(current)
        add(current, code, text, is_class)
        if current.kind:
            current = None
    return [d for d in found if (d.code or d.kind == "section") and d.name not in INTERNAL]


def add(declaration, code, text, is_class):
    """Adds the lines of one declaration. `is_class`: the match of a class or an enumeration, or None."""
    if not is_class:
        declaration.code.append(head_of_function(text) if is_function(text) else text)
        return
    kind, name = is_class.group(1), is_class.group(2)
    declaration.kind, declaration.name = kind, name or ""
    plain = FRIEND_LINE.sub("", text)
    body = [without_arguments(without_comment(line)) for line in plain.splitlines()[1:]]
    has_functions = kind in ("class", "struct") and any(re.match(r"[^=]*[\w=]\(", line) for line in body)
    if not has_functions or code[0].startswith("typedef"):
        declaration.code.append(plain)
        return
    opening = next(i for i, line in enumerate(code) if "{" in without_strings(without_comment(line)))
    declaration.code.append("\n".join(code[:opening + 1]).split("{")[0].rstrip() + ";")
    inner = "\n".join(code[opening + 1:-1])
    declaration.members = parse(code_lines(inner), True, kind == "struct")


def prose(lines):
    """Returns a comment as Markdown: paragraphs, lists, and code that is indented by four spaces or more."""
    out, listed, code = [], False, False
    for line in lines:
        listed = line.startswith("- ") or (listed and line.startswith("  "))
        if line.startswith("  ") and not listed:
            out += [] if code or not out or not out[-1] else [""]
            code = True
            out.append("  " + line)
            continue
        out += [""] if code and line else []
        code = False
        if not line:
            out.append(line)
            continue
        parts = re.split(r"(`[^`]*`)", line)
        escaped = [p if i % 2 else re.sub(r"(?<!^)\*|<|_(?=\w*\b_)", lambda m: {"<": "&lt;"}.get(m.group(), "\\" + m.group()), p)
                   for i, p in enumerate(parts)]
        out.append("".join(escaped))
    return out


def dedented(code):
    return textwrap.dedent("\n".join(code)).splitlines()


def title(declaration):
    """Returns the name of the first declaration, as a heading."""
    if declaration.name:
        return declaration.name
    code = without_arguments(re.sub(r"\[\[.*?\]\]", "", without_comment(declaration.code[0])))
    code = re.sub(r"^\s*(template\b)?\s*", "", code)
    named = re.match(r"(?:using|concept|#define) (\w+)", code)
    if named:
        return named.group(1)
    function = re.match(r"[^=;]*?(\w+|operator[^\s(]+)\(", code)
    if function:
        return function.group(1) + "()"
    return re.search(r"(\w+)\s*(?:=|;|\{|,|$)", code).group(1)


def write(declarations, level, out, language):
    sections = any(d.kind == "section" for d in declarations)
    for d in declarations:
        if d.kind == "section":
            out += ["", f"## {d.name}"]
            continue
        if d.code and level == 2 and not sections:
            out += ["", f"## {title(d)}"]
        if d.code:
            out += ["", f"```{language}", *dedented(d.code), "```"]
        if d.comment:
            out += ["", *prose(d.comment)]
        if d.members:
            write(d.members, level + 1, out, language)


def page(tree, header):
    text = (tree / header).read_text()
    intro, rest = file_comment(text)
    language = "c" if header.startswith("include/") else "cpp"
    out = [f"# `<{installed(header)}>`", "", *prose(intro)]
    write(parse(code_lines(rest)), 2, out, language)
    return "\n".join(out).rstrip() + "\n"


def index(tree):
    out = ["# Pages of the public headers", "",
           *textwrap.wrap("`scripts/api_pages.py` writes these pages from the comments of the headers, which state the "
                          "full contracts. A program includes the headers that [api.md](../api.md) lists, and these "
                          "include the ones below. Headers without a page contain the implementation of templates.",
                          120)]
    for group, headers in HEADERS.items():
        out += ["", f"## {group}", "", "| page | content |", "| --- | --- |"]
        for header in headers:
            intro, _ = file_comment((tree / header).read_text())
            first = " ".join(prose(intro)).split(". ")[0].rstrip(".")
            out.append(f"| [{Path(header).name}]({Path(header).stem}.md) | {first}. |")
    return "\n".join(out) + "\n"


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    places = [a for a in arguments if not a.startswith("--")]
    tree = Path(places[0]) if places else Path(__file__).resolve().parent.parent
    refuse_unlisted(tree)
    headers = [header for group in HEADERS.values() for header in group]
    pages = {"README.md": index(tree)}
    for header in headers:
        name = Path(header).stem + ".md"
        if name in pages:
            sys.exit(f"scripts/api_pages.py: two headers have the page docs/api/{name}")
        pages[name] = page(tree, header)
    folder = tree / "docs/api"
    present = {p.name for p in folder.glob("*.md")} if folder.exists() else set()
    wrong = [n for n, text in pages.items() if n not in present or (folder / n).read_text() != text]
    wrong += sorted(present - set(pages))
    if check:
        for name in wrong:
            print(f"docs/api/{name}: differs from the comments of its header: run scripts/api_pages.py")
        sys.exit(1 if wrong else 0)
    folder.mkdir(exist_ok=True)
    for name in wrong:
        if name in pages:
            (folder / name).write_text(pages[name])
        else:
            (folder / name).unlink()


main()
