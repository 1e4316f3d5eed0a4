#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/sass.py and tools/count_sass.py on small kernels in SASS whose counts are known. Needs no CUDA."""

import pathlib
import re
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import count_sass  # noqa: E402
import sass  # noqa: E402

NARROW = "_ZN5moxie4cuda4sm907expertsILNS_11BlockFormatE0ELi4ELi0EEEvNS1_4CallE"
BOTH = "_ZN5moxie4cuda4sm907expertsILNS_11BlockFormatE1ELi7ELi5EEEvNS1_4CallE"


def assemble(code, symbol=NARROW):
    """Lines of instructions and `label:` as cuobjdump prints them; {label} is an address."""
    lines, labels = [], {}
    for line in filter(None, (line.strip() for line in code.splitlines())):
        if line.endswith(":"):
            labels[line[:-1]] = f"0x{16 * len(lines):x}"
        else:
            lines.append(line)
    text = ["Fatbin elf code:", "arch = sm_90a", f"\t\tFunction : {symbol}", '\t.headerflags\t@"EF_CUDA_SM90"']
    for number, line in enumerate(lines):
        guard, rest = re.match(r"(@\S+ )?(.*)", line.format(**labels)).groups()
        text.append(f"        /*{16 * number:04x}*/  {guard or '':>10} {rest} ;     /* 0x0000000000007918 */")
        text.append(f"{'':80}/* 0x000fc00000000000 */")
    return "\n".join(text) + "\n\t\t.......\n"


def resources(symbol=NARROW, registers=96, stack=0):
    return f"Resource usage:\n Common:\n  GLOBAL:0\n Function {symbol}:\n  REG:{registers} STACK:{stack} SHARED:1024\n"


def count(code, symbol=NARROW, **used):
    (kernel,) = count_sass.count(assemble(code, symbol), resources(symbol, **used))
    return kernel


# Two tiles of 16 x 16 weights: 12 instructions, of which 5 are ALU's.
LOOP = """
    MOV R1, c[0x0][0x28]
  loop:
    LDS.128 R8, [R2]
    BREV R12, R8
    LOP3.LUT R16, R8, 0x8e008e00, RZ, 0xc0, !PT
    IMAD.SHL.U32 R9, R8, 0x100, RZ
    HMMA.16816.F32 R24, R16, R4, R24
    LOP3.LUT R17, R12, 0x8e008e00, RZ, 0xc0, !PT
    PRMT R18, R12, 0x3232, RZ
    HMMA.16816.F32 R28, R16.reuse, R6, R28
    IADD3 R2, R2, 0x80, RZ
    ISETP.NE.AND P0, PT, R2, R3, PT
    ULDC UR4, c[0x0][0x3dc]
    @P0 BRA {loop}
    EXIT
"""


class CountSass(unittest.TestCase):
    def test_one_turn_of_a_loop_is_counted_per_weight(self):
        (loop,) = count(LOOP).loops
        self.assertEqual((loop.at, loop.rows, loop.weights, loop.instructions), (0x10, 8, 512, 12))
        self.assertEqual(
            loop.pipes, {"alu": 5, "fma": 1, "xu": 1, "tensor": 2, "lsu": 1, "uniform": 0, "other": 2}
        )
        self.assertEqual((loop.per_weight, loop.alu_per_weight), (0.75, 5 / 16))

    def test_hmmas_with_one_a_operand_multiply_the_same_weights(self):
        wide = LOOP.replace("HMMA.16816.F32 R24, R16, R4, R24", "HMMA.16816.F32 R24, R16, R4, R24\n" * 2)
        wide = wide.replace("HMMA.16816.F32 R28, R16.reuse, R6, R28", "HMMA.16816.F32 R28, R16, R6, R28\n" * 2)
        (loop,) = count(wide).loops
        self.assertEqual((loop.rows, loop.weights, loop.instructions), (16, 512, 14))

    def test_weights_that_are_multiplied_unevenly_are_refused(self):
        uneven = LOOP.replace("HMMA.16816.F32 R24, R16, R4, R24", "HMMA.16816.F32 R24, R16, R4, R24\n" * 2)
        with self.assertRaisesRegex(sass.Unreadable, r"multiplied \[1, 2\] times"):
            count(uneven)

    def test_a_loop_without_hmma_is_not_counted(self):
        kernel = count("loop:\n IADD3 R2, R2, 0x1, RZ\n ISETP.NE.AND P0, PT, R2, R3, PT\n @P0 BRA {loop}\n EXIT")
        self.assertEqual((kernel.loops, kernel.stray), ([], []))
        self.assertEqual(count_sass.problems([kernel])[0], "no multiply loop was found: nothing was counted")

    def test_of_nested_loops_the_innermost_with_hmma_is_counted(self):
        nested = f"outer:\n IADD3 R9, R9, 0x1, RZ\n {LOOP.replace('EXIT', '@P1 BRA {outer}')}\n EXIT"
        (loop,) = count(nested).loops
        self.assertEqual((loop.at, loop.instructions), (0x20, 12))

    def test_hmmas_in_no_loop_are_a_problem(self):
        more = "HMMA.16816.F32 R28, R16, R6, R28\n"
        kernel = count(LOOP.replace("EXIT", more * 2 + "EXIT"))
        self.assertEqual(kernel.stray, [(0xD0, 2)])
        self.assertIn("HMMAs at 0xd0 lie in no loop", "\n".join(count_sass.problems([kernel])))

    def test_the_odd_step_behind_a_loop_of_two_is_no_problem_and_a_second_one_is(self):
        more = "HMMA.16816.F32 R28, R16, R6, R28\n"
        kernel = count(LOOP.replace("EXIT", more + "EXIT"))
        self.assertEqual(kernel.stray, [(0xD0, 1)])
        self.assertEqual(count_sass.problems([kernel]), [])
        kernel = count(LOOP.replace("EXIT", more + "@P1 BRA {end}\n" + more + "end:\n EXIT"))
        self.assertEqual(len(kernel.stray), 2)
        self.assertIn("lie in no loop", "\n".join(count_sass.problems([kernel])))

    def test_a_wait_that_succeeds_at_once_costs_its_own_instructions_only(self):
        aside = LOOP.replace("LDS.128", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R5], R6\n @!P1 BRA {cold}\n go:\n LDS.128")
        aside += "cold:\n SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R5], R6\n @!P1 BRA {cold}\n BRA {go}"
        self.assertEqual(count(aside).loops[0].instructions, 14)

    def test_a_wait_in_line_is_counted_once(self):
        wait = "wait:\n SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R5], R6\n @!P1 BRA {wait}\n"
        inline = LOOP.replace("LDS.128", f"NOP\n {wait} LDS.128")
        self.assertEqual(count(inline).loops[0].instructions, 15)

    def test_what_some_lanes_skip_is_counted(self):
        arrival = LOOP.replace("IADD3", "@P1 BRA {on}\n SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R5], RZ\n on:\n IADD3")
        self.assertEqual(count(arrival).loops[0].instructions, 14)

    def test_a_turn_that_multiplies_less_is_not_the_one_that_is_counted(self):
        partial = LOOP.replace("LDS.128", "@P2 BRA {rest}\n LDS.128", 1).replace("IADD3", "join:\n IADD3")
        partial += "rest:\n" + "NOP\n" * 20 + "HMMA.16816.F32 R24, R16, R4, R24\n BRA {join}"
        (loop,) = count(partial).loops
        self.assertEqual((loop.weights, loop.instructions), (512, 13))

    def test_bsync_goes_on_where_its_bssy_ends(self):
        apart = LOOP.replace("LDS.128", "BSSY B0, {on}\n @P1 BRA {aside}\n BSYNC B0\n on:\n LDS.128", 1)
        apart += "aside:\n SEL R9, R9, RZ, P1\n BSYNC B0\n NOP\n EXIT"
        self.assertEqual(count(apart).loops[0].instructions, 15 + 1)

    def test_jumps_on_a_second_predicate_or_by_vote_may_go_on(self):
        for jump, on in (("BRA", set()), ("BRA UP0,", {2}), ("BRA.DIV UR4,", {2}), ("@P0 BRA P4,", {2})):
            (body,) = sass.parse(assemble(LOOP.replace("@P0 BRA", jump))).values()
            self.assertEqual(sass.Kernel(body).next[1], {1} | on, jump)

    def test_what_only_an_indirect_jump_reaches_is_read_too(self):
        self.assertEqual(count("BRX R4 -0x460\n" + LOOP).loops[0].at, 0x20)

    def test_an_indirect_jump_in_a_loop_is_refused(self):
        with self.assertRaisesRegex(sass.Unreadable, "indirect jump"):
            count(LOOP.replace("IADD3", "@P1 BRX R4 -0x460\n IADD3"))

    def test_instructions_of_an_unknown_pipe_are_refused(self):
        with self.assertRaisesRegex(sass.Unreadable, "FROB at 0x20: in none of PIPES"):
            count(LOOP.replace("BREV", "FROB"))

    def test_matrix_instructions_of_unknown_size_are_refused(self):
        for other in ("HMMA.1688.F32", "HGMMA.64x8x16.F32", "QGMMA.64x8x32.F32", "IMMA.16832.S8.S8"):
            with self.assertRaisesRegex(sass.Unreadable, "unknown", msg=other):
                count(LOOP.replace("HMMA.16816.F32 R28", f"{other} R28"))

    def test_lines_that_are_no_instructions_are_refused(self):
        with self.assertRaisesRegex(sass.Unreadable, "not an instruction"):
            sass.parse(assemble(LOOP).replace("BREV R12, R8 ;", "brev r12"))

    def test_a_spill_is_a_problem_in_any_kernel(self):
        self.assertEqual(count(LOOP).local, 0)
        kernel = count(LOOP.replace("IADD3", "STL [R1], R9\n LDL R9, [R1]\n IADD3"), stack=8)
        self.assertEqual((kernel.local, kernel.stack_bytes), (2, 8))
        self.assertIn("2 accesses to local memory, stack frame 8", "\n".join(count_sass.problems([kernel])))

    def test_registers_are_those_at_entry_and_after_they_are_moved(self):
        kernel = count("USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x68\n" + LOOP, registers=96)
        self.assertEqual((kernel.registers, kernel.moves), (96, [104]))

    def test_a_kernel_whose_registers_are_not_named_is_refused(self):
        with self.assertRaisesRegex(sass.Unreadable, "does not name its registers"):
            count_sass.count(assemble(LOOP), resources("another"))

    def test_a_loop_below_its_limits_passes_and_one_above_is_named(self):
        self.assertEqual(count_sass.problems([count(LOOP)]), [])
        place = "experts<mxfp4, 4>: loop at 0x10 for 8 rows"
        long = count(LOOP.replace("BREV", "FMUL R9, R9, R9\n" * 20 + "BREV"))
        self.assertEqual(count_sass.problems([long]), [f"{place}: 2.000 thread instructions a weight, at most 1.9"])
        alu = count(LOOP.replace("BREV", "SHF.L.U32 R9, R9, 0x1, RZ\n" * 10 + "BREV"))
        self.assertEqual(count_sass.problems([alu]), [f"{place}: 0.938 ALU slots a weight, at most 0.87"])

    def test_a_kernel_for_two_widths_must_have_loops_of_both(self):
        found = count_sass.problems([count(LOOP, BOTH)])
        self.assertEqual(found, ["experts<nvfp4, 7, 5>: no loop for 16 rows, though it has a pace for them"])

    def test_a_kernel_without_a_limit_is_a_problem(self):
        found = count_sass.problems([count(LOOP, "_ZN5moxie6other_EvNS1_4CallE")])
        self.assertIn("no limit", found[0])

    def test_names_are_read_from_symbols(self):
        self.assertEqual(count_sass.name_of(NARROW), ("experts", ("mxfp4",), (), ("4",)))
        self.assertEqual(count_sass.name_of(BOTH), ("experts", ("nvfp4",), (), ("7", "5")))
        self.assertEqual(count_sass.name_of("_ZN5moxie4cuda4sm908tap_actsENS1_4CallE"), ("tap_acts", (), (), ()))
        self.assertEqual(count_sass.name_of("plain"), ("plain", (), (), ()))
        convert = "_ZN5moxie4cuda4sm907convertILNS_11BlockFormatE1ELNS2_9DirectionE0EEEvNS2_3JobE"
        self.assertEqual(count_sass.name_of(convert), ("convert", ("nvfp4",), ("Direction 0",), ()))

    def test_the_table_has_a_line_for_equal_loops_and_one_for_a_kernel_without_a_loop(self):
        twice = LOOP.replace("EXIT", LOOP.replace("loop", "again"))
        once = LOOP.replace("loop", "third").replace("BREV", "NOP\n BREV")
        lines = count_sass.table([count(twice.replace("EXIT", once)), count("EXIT", "plain")]).splitlines()
        start = "| `experts<mxfp4, 4>` | 96 | 0 | 8 |"
        self.assertEqual(lines[2], f"{start} 2 | 512 | 0.750 | 0.312 | 5 | 1 | 1 | 2 | 1 | 0 | 2 |")
        self.assertEqual(lines[3], f"{start} 1 | 512 | 0.812 | 0.312 | 5 | 1 | 1 | 2 | 1 | 0 | 3 |")
        self.assertEqual(lines[4].split("|")[1:4], [" `plain` ", " 96 ", " 0 "])
        self.assertEqual({line.count("|") for line in lines}, {16})
        self.assertEqual(len(lines), 5)


if __name__ == "__main__":
    unittest.main()
