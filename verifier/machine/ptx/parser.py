"""Reader of PTX text."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache

from verifier.machine.execute.findings import ParseError
from verifier.machine.kept_results import kept
from verifier.machine.ptx.declarations import (
    VARIABLE,
    make_variable,
    parse_literal,
    read_parameters,
    split_operands,
)
from verifier.machine.ptx.locations import LocationTracker
from verifier.machine.ptx.syntax import (
    Address,
    Function,
    Immediate,
    Instruction,
    Item,
    Label,
    Module,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Unread,
    Variable,
    Vector,
)

_NAME = r"[A-Za-z_$%][\w$]*"
_SKIP = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_LOC = re.compile(r"\.loc\s+([^\n]*)")
_ASSEMBLY = re.compile(r"// begin inline asm\b.*?// end inline asm\b", re.DOTALL)
"""Inline assembly, in which LLVM counts lines from that of the call, one each: none is the source's."""
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?[^\n]*')
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_REGISTERS = re.compile(r"\.reg\s*\.(\w+)\s+([^;]*);")
_STATEMENT = re.compile(r"(?:@(!?)(" + _NAME + r")\s+)?([a-z][\w.:]*)\s*([^;]*);")
_DIRECTIVE = re.compile(r"\.([a-z_]+)\b")
_SPECIAL = re.compile(
    r"%(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]$"
    r"|%(?:laneid|warpid|nwarpid|smid|nsmid|gridid|clock|clock64|clock_hi|globaltimer|globaltimer_lo"
    r"|globaltimer_hi|lanemask_(?:eq|le|lt|ge|gt)|dynamic_smem_size|total_smem_size|is_explicit_cluster"
    r"|cluster_ctarank|cluster_nctarank)$|WARP_SZ$"
)
_FUNCTION = re.compile(
    r"(?:\.(?:visible|extern|weak|alias)\s+)*\.(?P<kind>entry|func)\b(?:\s*\.(?:noinline|attribute\([^)]*\)))*\s*"
    r"(?:\((?P<results>[^)]*)\)\s*)?(?:\.noinline\s*)?(?P<name>"
    + _NAME
    + r")\s*(?:\((?P<parameters>[^)]*)\))?"
)


def parse(text: str) -> Module:
    """Read a PTX module.

    Raises ParseError with the line of the first text that is not understood.
    """
    return _ModuleReader(text).read()


@lru_cache(maxsize=256)
def parsed(text: str) -> Module:
    """Read a PTX module as `parse` does, once."""
    return kept("module", (text,), lambda: parse(text))


class _ModuleReader:
    """Walks the module level: versions, variables, functions and debug sections."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.files = {int(m[1]): m[2] for m in _FILE.finditer(text)}
        self.assembly = [place for m in _ASSEMBLY.finditer(text) for place in m.span()]
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, Variable] = {}
        self.version, self.target = (0, 0), ""

    def read(self) -> Module:
        """Read everything up to the end of the text."""
        self.skip()
        while self.position < len(self.text):
            self.read_item()
            self.skip()
        return Module(
            version=self.version,
            target=self.target,
            functions=self.functions,
            variables=self.variables,
            text=self.text,
        )

    def skip(self) -> None:
        """Step over blanks and comments."""
        match = _SKIP.match(self.text, self.position)
        if match:
            self.position = match.end()

    def line(self, position: int | None = None) -> int:
        """Line number of a position, counted from 1."""
        target = self.position if position is None else position
        return bisect_right(self.line_starts, target)

    def in_assembly(self) -> bool:
        """Return whether the current position is in inline assembly."""
        return bisect_right(self.assembly, self.position) % 2 == 1

    def fail(self, what: str) -> ParseError:
        """Describe what stands at the current position."""
        excerpt = self.text[self.position : self.position + 60].split("\n")[0]
        return ParseError(f"PTX line {self.line()}: {what}: {excerpt!r}")

    def take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Consume a pattern that has to be here."""
        match = pattern.match(self.text, self.position)
        if not match:
            raise self.fail(f"expected {pattern.pattern[:30]!r}")
        self.position = match.end()
        return match

    def read_item(self) -> None:
        """Read one directive at module level."""
        rest = self.text[self.position : self.position + 16]
        if rest.startswith(".version"):
            major, minor = self.take(re.compile(r"\.version\s+(\d+)\.(\d+)")).groups()
            self.version = (int(major), int(minor))
        elif rest.startswith(".target"):
            self.target = self.take(re.compile(r"\.target\s+([^\n]*)"))[1].split(",")[0].strip()
        elif rest.startswith((".address_size", ".file", ".loc", ".pragma")):
            self.take(re.compile(r"[^\n]*"))
        elif rest.startswith(".section"):
            self.take(re.compile(r"\.section[^{]*\{[^}]*\}"))
        elif (match := _FUNCTION.match(self.text, self.position)) is not None:
            self.position = match.end()
            self.read_function(match)
        elif (match := VARIABLE.match(self.text, self.position)) is not None:
            self.position = match.end()
            variable = make_variable(match)
            self.variables[variable.name] = variable
            self.take(re.compile(r"\s*;"))
        else:
            raise self.fail("unknown directive")

    def read_function(self, match: re.Match[str]) -> None:
        """Read a function's directives and its body, if it has one."""
        directives: dict[str, tuple[int, ...]] = {}
        self.skip()
        while self.text[self.position] not in "{;":
            found = self.take(re.compile(r"\.(\w+)\s*([\d,\s]*)"))
            directives[found[1]] = tuple(int(n) for n in found[2].split(",") if n.strip())
            self.skip()
        parameters = read_parameters(match["parameters"])
        results = read_parameters(match["results"])
        has_body = self.text[self.position] == "{"
        self.position += 1
        body = _BodyReader(self) if has_body else None
        if body:
            body.read()
        elif match["name"] in self.functions:
            return
        self.functions[match["name"]] = Function(
            name=match["name"],
            is_kernel=match["kind"] == "entry",
            parameters=parameters,
            results=results,
            registers=body.registers if body else {},
            variables=tuple(body.variables) if body else (),
            body=tuple(body.items) if body else (),
            directives=directives,
        )


class _BodyReader:
    """Walks one function body, keeping scopes of registers, variables and labels apart."""

    def __init__(self, module: _ModuleReader) -> None:
        self.module = module
        self.registers: dict[str, str] = {}
        self.ranges: list[dict[str, tuple[str, int]]] = [{}]
        self.names: list[dict[str, str]] = [{}]
        self.scopes = 0
        self.open: list[int] = [0]
        self.variables: list[Variable] = []
        self.items: list[Item] = []
        self.locations = LocationTracker(module.files)
        self.cache: dict[str, Operand] = {}

    def read(self) -> None:
        """Read statements until the brace that closes the function."""
        module = self.module
        while True:
            module.skip()
            text, position = module.text, module.position
            letter = text[position : position + 1]
            if letter == "":
                raise module.fail("the function has no end")
            if letter == "{":
                self.open_scope()
            elif letter == "}":
                module.position += 1
                if len(self.names) == 1:
                    return
                self.names.pop()
                self.ranges.pop()
                self.open.pop()
                self.cache.clear()
            elif letter == ".":
                self.read_directive()
            elif (label := _LABEL.match(text, position)) is not None:
                module.position = label.end()
                self.items.append(Label(self.declare_label(label[1])))
            else:
                self.read_instruction()

    def open_scope(self) -> None:
        """Enter `{`: labels inside are found ahead, since branches may precede them."""
        self.module.position += 1
        self.scopes += 1
        self.open.append(self.scopes)
        self.names.append({})
        self.ranges.append({})
        self.cache.clear()
        depth, position, text = 1, self.module.position, self.module.text
        for match in re.compile(r"[{}]|(?<![\w$%])([A-Za-z_$][\w$]*)\s*:(?!:)").finditer(text, position):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0:
                break
            if match[1] and depth == 1:
                self.names[-1][match[1]] = f"{match[1]}@{self.open[-1]}"

    def declare_label(self, name: str) -> str:
        """Give the scoped name of a label."""
        return self.names[-1].get(name, name)

    def read_directive(self) -> None:
        """Read `.reg`, a variable, `.loc`, or something without effect."""
        module = self.module
        kind = module.text[module.position : module.position + 8]
        if kind.startswith((".loc ", ".loc\t")):
            inside, text = module.in_assembly(), module.take(_LOC)[1]
            if not inside or self.locations.current is None:
                self.locations.advance(text)
        elif kind.startswith(".reg"):
            self.declare_registers(module.take(_REGISTERS))
        elif (match := VARIABLE.match(module.text, module.position)) is not None:
            module.position = match.end()
            module.take(re.compile(r"\s*;"))
            self.declare_variable(make_variable(match))
        elif kind.startswith((".pragma", ".callpro", ".branch", ".abi_pre")):
            module.take(re.compile(r"[^;]*;"))
        elif kind.startswith(".file"):
            module.take(re.compile(r"[^\n]*"))
        else:
            raise module.fail("unknown directive")

    def declare_variable(self, variable: Variable) -> None:
        """Keep a variable under a name of its own when it stands in an inner scope."""
        name = variable.name
        if len(self.names) > 1:
            name = f"{variable.name}@{self.open[-1]}"
            self.names[-1][variable.name] = name
            self.cache.clear()
        self.variables.append(
            Variable(
                name=name,
                space=variable.space,
                type=variable.type,
                alignment=variable.alignment,
                size=variable.size,
                initial=variable.initial,
            )
        )

    def declare_registers(self, match: re.Match[str]) -> None:
        """Record `.reg .b32 %r<9>` or `.reg .pred p, q`."""
        for name in (part.strip() for part in match[2].split(",")):
            family = re.fullmatch(r"(.*)<(\d+)>", name)
            if family:
                self.ranges[-1][family[1]] = (match[1], int(family[2]))
            else:
                scoped = name if len(self.names) == 1 else f"{name}@{self.open[-1]}"
                self.names[-1][name] = scoped
                self.registers[scoped] = match[1]
        self.cache.clear()

    def find_register(self, name: str) -> str | None:
        """Scoped name of a declared register, or None."""
        scoped = self.find_name(name)
        if scoped in self.registers:
            return scoped
        family = re.fullmatch(r"(.*?)(\d+)", name)
        if family:
            for depth, ranges in enumerate(reversed(self.ranges)):
                found = ranges.get(family[1])
                if found and int(family[2]) < found[1]:
                    level = len(self.ranges) - 1 - depth
                    scoped = name if level == 0 else f"{name}@{self.open[level]}"
                    self.registers[scoped] = found[0]
                    return scoped
        return None

    def find_name(self, name: str) -> str:
        """Look a name up in the open scopes, innermost first."""
        for scope in reversed(self.names):
            if name in scope:
                return scope[name]
        return name

    def read_instruction(self) -> None:
        """Read one instruction with its guard and operands."""
        start = self.module.position
        match = self.module.take(_STATEMENT)
        guard = None
        if match[2]:
            name = self.find_register(match[2])
            if name is None:
                raise self.module.fail(f"unknown predicate {match[2]}")
            guard = Register(name, negated=bool(match[1]))
        line, location = self.module.line(start), self.locations.current
        if match[3].split(".")[0] == "call":
            self.items.append(self.call(match[3], match[4], guard, line))
            return
        operands = tuple(self.readable(part) for part in split_operands(match[4]))
        self.items.append(
            Instruction(opcode=match[3], operands=operands, guard=guard, line=line, location=location)
        )

    def call(self, opcode: str, text: str, guard: Register | None, line: int) -> Instruction:
        """Read `call (result), function, (arguments)` in all its short forms."""
        flat = " ".join(re.sub(r"//[^\n]*", "", text).split())
        match = re.fullmatch(
            r"(?:\(([^)]*)\)\s*,\s*)?([\w$%]+)\s*(?:,\s*\(([^)]*)\))?(?:\s*,\s*([\w$]+))?", flat
        )
        if not match:
            raise self.module.fail(f"unknown call {flat!r}")

        def names(part: str | None) -> tuple[str, ...]:
            return tuple(self.find_name(n.strip()) for n in (part or "").split(",") if n.strip())

        callee = match[2]
        operands: tuple[Operand, ...] = ()
        if register := self.find_register(callee):
            operands = (Register(register),)
        return Instruction(
            opcode=opcode,
            operands=operands,
            guard=guard,
            line=line,
            location=self.locations.current,
            callee=callee,
            arguments=names(match[3]),
            results=names(match[1]),
        )

    def readable(self, text: str) -> Operand:
        """Parse one operand; what is not understood is an error only where it is executed."""
        try:
            return self.operand(text)
        except ParseError:
            return Unread(text.strip())

    def operand(self, text: str) -> Operand:
        """Parse one operand, remembering texts already seen in this scope."""
        text = text.strip()
        found = self.cache.get(text)
        if found is None:
            found = self.cache[text] = self.parse_operand(text)
        return found

    def parse_operand(self, text: str) -> Operand:
        """Parse one operand."""
        if text.startswith("{"):
            return Vector(tuple(self.operand(part) for part in split_operands(text[1:-1])))
        if text.startswith("["):
            return self.address(text[1:-1].strip())
        if text == "_":
            return Sink()
        if "|" in text:
            first, second = text.split("|")
            return Pair(self.operand(first), self.operand(second))
        literal = parse_literal(text)
        if literal is not None:
            return literal
        negated = text.startswith("!")
        name = text[1:].strip() if negated else text
        if _SPECIAL.match(name):
            return Special(name)
        register = self.find_register(name)
        if register is not None:
            return Register(register, negated)
        found = re.fullmatch(r"([\w$%@]+)\s*\+\s*(-?\w+)", name)
        if found:
            return Symbol(self.find_name(found[1]), int(found[2], 0))
        if re.fullmatch(_NAME, name):
            return Symbol(self.find_name(name))
        raise self.module.fail(f"unknown operand {text!r}")

    def address(self, text: str) -> Address:
        """Parse the inside of `[...]`."""
        match = re.fullmatch(r"([^+\s]+)((?:\s*\+\s*-?\w+)*)", text)
        if not match:
            raise self.module.fail(f"unknown address {text!r}")
        base = self.operand(match[1])
        if not isinstance(base, Register | Symbol | Immediate):
            raise self.module.fail(f"unknown address {text!r}")
        return Address(base, sum(int(part, 0) for part in match[2].split("+") if part.strip()))
