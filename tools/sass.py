# SPDX-License-Identifier: Apache-2.0
"""SASS as `cuobjdump -sass` prints it: instructions of each kernel, its loops, what one turn of a loop executes.

Control flow is read from the instructions. Targets of indirect jumps (BRX) are not in the text: what only they reach
counts as an entry of its own. BSYNC goes on behind its BSSY's end; a call comes back.
"""

import dataclasses
import re

FUNCTION = re.compile(r"^\s*Function : (\S+)")
LINE = re.compile(
    r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P[0-9T]+)\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)\s*(.*?)\s*;"
)
ADDRESS = re.compile(r"(?<![\w\[])0x([0-9a-f]+)$")
REGISTER = re.compile(r"^[-|~!]*R(\d+)")


class Unreadable(Exception):
    """SASS of which no count can be trusted."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    at: int  # bytes from the kernel's start
    guard: str  # "@P0", or empty
    name: str  # "LOP3"
    suffix: str  # ".LUT"
    operands: tuple

    @property
    def conditional(self):
        """A jump that may go on behind itself: guarded, with a predicate as operand, or by vote of the warp."""
        return bool(self.guard) or ".DIV" in self.suffix or ".CONV" in self.suffix or len(self.operands) > 1

    @property
    def target(self):
        match = ADDRESS.search(self.operands[-1]) if self.operands else None
        if not match:
            raise Unreadable(f"{self.name}{self.suffix} at {self.at:#x} has no address: {', '.join(self.operands)}")
        return int(match[1], 16)

    def register(self, operand):
        match = REGISTER.match(self.operands[operand]) if operand < len(self.operands) else None
        return int(match[1]) if match else None

    @property
    def written(self):
        """Registers it writes, as far as its name tells: at least the first."""
        first = self.register(0)
        if first is None:
            return range(0)
        if self.name == "HMMA":
            return range(first, first + (4 if self.suffix.endswith(".F32") else 2))
        if match := re.match(r"\.64x(\d+)x\d+(\.F32)?", self.suffix):  # GMMAs
            return range(first, first + int(match[1]) // (2 if match[2] else 4))
        wide = ".64" in self.suffix or ".WIDE" in self.suffix or (self.name == "CS2R" and ".32" not in self.suffix)
        return range(first, first + (4 if ".128" in self.suffix else 2 if wide else 1))


@dataclasses.dataclass(frozen=True)
class Loop:
    header: int  # index of a block
    blocks: frozenset
    inner: tuple  # loops inside this one


def parse(text):
    """{kernel's symbol: [Instruction]}."""
    kernels, body = {}, None
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            body = kernels.setdefault(match[1], [])
            if body:
                raise Unreadable(f"kernel {match[1]} is there twice")
        elif (match := LINE.match(line)) and body is not None:
            operands = tuple(part.strip() for part in match[5].split(",")) if match[5] else ()
            body.append(Instruction(int(match[1], 16), match[2] or "", match[3], match[4], operands))
        elif body is not None and re.match(r"^\s+/\*[0-9a-f]{4,}\*/\s", line):
            raise Unreadable(f"not an instruction: {line.strip()}")
    return kernels


class Kernel:
    """Basic blocks and loops of one kernel."""

    def __init__(self, instructions):
        self.instructions = instructions
        self.blocks = self._cut()
        self.next = self._edges()
        self._order()

    def _cut(self):
        """[[Instruction]]: cut before every target and behind every jump."""
        starts = set()
        for before, after in zip(self.instructions, self.instructions[1:]):
            if before.name in ("BRA", "BRX", "JMX", "EXIT", "RET", "BSYNC"):
                starts.add(after.at)
            if before.name == "BSSY":
                starts.add(before.target)
        starts |= {i.target for i in self.instructions if i.name == "BRA"}
        blocks = []
        for instruction in self.instructions:
            if not blocks or instruction.at in starts:
                blocks.append([])
            blocks[-1].append(instruction)
        missing = starts - {block[0].at for block in blocks}
        if missing:
            raise Unreadable(f"jump to {min(missing):#x}, where no instruction starts")
        return blocks

    def _edges(self):
        index = {block[0].at: number for number, block in enumerate(self.blocks)}
        ends = {}  # barrier -> where its BSSYs end
        for instruction in self.instructions:
            if instruction.name == "BSSY":
                ends.setdefault(instruction.operands[0], set()).add(index[instruction.target])
        edges = []
        for number, block in enumerate(self.blocks):
            last, behind = block[-1], {number + 1} if number + 1 < len(self.blocks) else set()
            if last.name == "BRA":
                edges.append({index[last.target]} | (behind if last.conditional else set()))
            elif last.name in ("EXIT", "RET", "BRX", "JMX"):
                edges.append(behind if last.guard else set())
            elif last.name == "BSYNC":
                known = ends.get(last.operands[0], set())
                edges.append(behind if behind <= known else known | behind if last.guard else known)
            else:
                edges.append(behind)
        return edges

    def _order(self):
        """Which blocks dominate which: on every way from an entry to the second lies the first."""
        self.before = [set() for _ in self.blocks]
        for block, following in enumerate(self.next):
            for step in following:
                self.before[step].add(block)
        order, seen, entries = [], set(), set()
        for entry in range(len(self.blocks)):
            if entry in seen:
                continue
            entries.add(entry)
            seen.add(entry)
            walk, postorder = [(entry, iter(sorted(self.next[entry])))], []
            while walk:
                step = next((n for n in walk[-1][1] if n not in seen), None)
                if step is None:
                    postorder.append(walk.pop()[0])
                else:
                    seen.add(step)
                    walk.append((step, iter(sorted(self.next[step]))))
            order += reversed(postorder)
        everything = frozenset(order)
        self.dominators = {block: frozenset([block]) if block in entries else everything for block in order}
        changed = True
        while changed:
            changed = False
            for block in (b for b in order if b not in entries):
                new = frozenset.intersection(*(self.dominators[b] for b in self.before[block])) | {block}
                if new != self.dominators[block]:
                    self.dominators[block], changed = new, True

    def loops(self):
        """[Loop]: the natural loops, those with one header as one, inner ones before outer ones."""
        bodies = {}
        for block, following in enumerate(self.next):
            for header in following & self.dominators[block]:
                body = bodies.setdefault(header, {header})
                stack = [block]
                while stack:
                    inside = stack.pop()
                    if inside not in body:
                        body.add(inside)
                        stack.extend(self.before[inside])
        found = []
        for header, body in sorted(bodies.items(), key=lambda item: len(item[1])):
            inner = tuple(loop for loop in found if loop.header in body and loop.header != header)
            found.append(Loop(header, frozenset(body), inner))
        return found

    def turn(self, loop, counted):
        """[Instruction] of one turn: the way from the header back to it with the most instructions for which
        counted(instruction) holds; among those the fewest blocks of inner loops (a wait that succeeds at once), each
        passed once; among those the most instructions, so that what some lanes skip is in. The warp is together: it
        goes on behind a BRA.DIV."""
        waits = frozenset().union(*(inner.blocks for inner in loop.inner))
        best, visiting = {}, set()

        def longest(block):  # (weight, path) of the rest of the turn, or None where it leaves the loop
            if block in best:
                return best[block]
            if block in visiting:
                raise Unreadable(f"loop at {self.blocks[loop.header][0].at:#x} has a cycle with two entries")
            visiting.add(block)
            answer, steps = None, self.next[block] & loop.blocks
            if ".DIV" in self.blocks[block][-1].suffix:
                steps &= {block + 1}
            for step in sorted(steps):
                if step == loop.header:
                    rest = ((0, 0, 0), ())
                elif step in self.dominators[block]:
                    continue  # around an inner loop once more
                else:
                    rest = longest(step)
                if rest is not None and (answer is None or rest[0] > answer[0]):
                    answer = rest
            visiting.discard(block)
            if answer is not None:
                body = self.blocks[block]
                own = (sum(map(counted, body)), -(block in waits), len(body))
                answer = (tuple(map(sum, zip(own, answer[0]))), (block, *answer[1]))
            best[block] = answer
            return answer

        for block in (b for b in loop.blocks for i in self.blocks[b] if i.name in ("BRX", "JMX")):
            raise Unreadable(f"indirect jump in the loop, in the block at {self.blocks[block][0].at:#x}")
        return [i for block in longest(loop.header)[1] for i in self.blocks[block]]
