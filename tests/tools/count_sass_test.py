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

FP16 = "_ZN5moxie4cuda4sm907expertsINS1_4Fp16ILNS_11BlockFormatE{}EEELi{}ELi{}ELi{}EEEvNS1_4CallE"
FP8 = "_ZN5moxie4cuda4sm907expertsINS1_3Fp8ELi{}ELi{}ELi{}EEEvNS1_4CallE"
NARROW = FP16.format(0, 4, 0, 0)
BOTH = FP16.format(1, 7, 5, 2)


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

# A jump for a warp that has parted, then two groups of 16 x 32 weights times N rows: 14 instructions.
QLOOP = """
  loop:
    LDS.128 R8, [R2]
    UMOV UR4, 0xffffffff
    LOP3.LUT R24, R8, 0x8e8e8e8e, RZ, 0xc0, !PT
    LOP3.LUT R28, R9, 0x8e8e8e8e, RZ, 0xc0, !PT
    BRA.DIV UR4, {apart}
  together:
    WARPGROUP.ARRIVE
    R2UR UR12, R74
    QGMMA.64xNx32.F32.E5M2.E4M3 R40, R24, gdesc[UR12], RZ, !UPT
    QGMMA.64xNx32.F32.E5M2.E4M3 R52, R28, gdesc[UR16], RZ, !UPT, gsb0
    WARPGROUP.DEPBAR.LE gsb0, 0x0
    FFMA R16, R40, R20, R16
    ISETP.NE.AND P0, PT, R2, R3, PT
    IADD3 R2, R2, 0x80, RZ
    @P0 BRA {loop}
    EXIT
  apart:
    MOV R48, 0xffffffff
    WARPSYNC.COLLECTIVE R48, {back}
    NOP
    ENDCOLLECTIVE
  back:
    BRA {together}
"""


def qloop(rows, name="loop"):
    """QLOOP of that many rows, with labels of its own."""
    text = QLOOP.replace("xNx", f"x{rows}x")
    for label in ("loop", "together", "apart", "back"):
        text = text.replace(f"{{{label}}}", f"{{{name}_{label}}}").replace(f"{label}:\n", f"{name}_{label}:\n")
    return text


class CountSass(unittest.TestCase):
    def test_one_turn_of_a_loop_is_counted_per_weight(self):
        (loop,) = count(LOOP).loops
        self.assertEqual((loop.at, loop.rows, loop.weights, loop.instructions), (0x10, 8, 512, 12))
        self.assertEqual(loop.pipes, {"alu": 5, "fma": 1, "xu": 1, "tensor": 2, "lsu": 1, "uniform": 0, "other": 2})
        self.assertEqual((loop.per_weight, loop.alu_per_weight), (0.75, 5 / 16))

    def test_hmmas_with_one_a_operand_multiply_the_same_weights(self):
        wide = LOOP.replace("HMMA.16816.F32 R24, R16, R4, R24", "HMMA.16816.F32 R24, R16, R4, R24\n" * 2)
        wide = wide.replace("HMMA.16816.F32 R28, R16.reuse, R6, R28", "HMMA.16816.F32 R28, R16, R6, R28\n" * 2)
        (loop,) = count(wide).loops
        self.assertEqual((loop.rows, loop.weights, loop.instructions), (16, 512, 14))

    def test_a_qgmma_multiplies_16_x_32_weights_of_a_warp(self):
        for rows in (8, 16, 24):
            (loop,) = count(qloop(rows), FP8.format(8, 0, 0)).loops
            self.assertEqual((loop.at, loop.rows, loop.weights, loop.instructions), (0, rows, 1024, 14))
            self.assertEqual(loop.pipes, {"alu": 4, "fma": 1, "xu": 0, "tensor": 2, "lsu": 1, "uniform": 2, "other": 4})

    def test_qgmmas_with_one_a_operand_multiply_the_same_weights(self):
        (loop,) = count(qloop(8).replace("R52, R28", "R52, R24"), FP8.format(8, 0, 0)).loops
        self.assertEqual((loop.rows, loop.weights), (16, 512))

    def test_hgmmas_have_half_as_many_weights(self):
        for rows in (16, 24, 32):
            text = qloop(rows).replace("QGMMA", "HGMMA").replace("x32.F32.E5M2.E4M3", "x16.F32")
            (loop,) = count(text.replace("R52, R28", "R60, R28")).loops
            self.assertEqual((loop.rows, loop.weights, loop.pipes["tensor"]), (rows, 512, 2))

    def test_a_matrix_instruction_writes_all_registers_of_its_sums(self):
        for rows, count_of in ((8, 4), (16, 8), (24, 12)):
            (body,) = sass.parse(assemble(qloop(rows))).values()
            written = next(i for i in body if i.name == "QGMMA").written
            self.assertEqual(list(written), list(range(40, 40 + count_of)))
        # The last of twelve is the next operand: other weights.
        (loop,) = count(qloop(24).replace("R52, R28", "R60, R24").replace("R40, R24", "R16, R24")).loops
        self.assertEqual((loop.rows, loop.weights), (24, 1024))

    def test_a_warp_that_is_together_goes_on_behind_a_jump_for_those_that_are_not(self):
        self.assertEqual(count(qloop(8), FP8.format(8, 0, 0)).loops[0].instructions, 14)
        other = qloop(8).replace("BRA.DIV UR4,", "@P3 BRA")
        self.assertEqual(count(other, FP8.format(8, 0, 0)).loops[0].instructions, 14 + 5)

    def test_weights_that_are_multiplied_unevenly_are_refused(self):
        uneven = LOOP.replace("HMMA.16816.F32 R24, R16, R4, R24", "HMMA.16816.F32 R24, R16, R4, R24\n" * 2)
        with self.assertRaisesRegex(sass.Unreadable, r"multiplied with \[8, 16\] rows"):
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
        self.assertEqual(kernel.stray, [(0xD0, {"HMMA.16816.F32": 2})])
        self.assertIn("HMMA.16816.F32 at 0xd0 in no loop", "\n".join(count_sass.problems([kernel])))

    def test_the_odd_step_behind_a_loop_of_two_is_no_problem_and_a_second_one_is(self):
        more = "HMMA.16816.F32 R28, R16, R6, R28\n"
        kernel = count(LOOP.replace("EXIT", more + "EXIT"))
        self.assertEqual(kernel.stray, [(0xD0, {"HMMA.16816.F32": 1})])
        self.assertEqual(count_sass.problems([kernel]), [])
        kernel = count(LOOP.replace("EXIT", more + "@P1 BRA {end}\n" + more + "end:\n EXIT"))
        self.assertEqual(len(kernel.stray), 2)
        self.assertIn("in no loop", "\n".join(count_sass.problems([kernel])))

    def test_half_a_stage_behind_a_loop_is_no_problem_if_the_loop_has_its_shape(self):
        tail = "QGMMA.64x{}x32.F32.E5M2.E4M3 R32, R28, gdesc[UR12], RZ, !UPT, gsb0\n EXIT"
        for tails, fine in (((8, 16, 24), True), ((8, 8, 24), False), ((8, 16, 32), False)):
            loops = (qloop(n, f"of_{n}").replace("EXIT", tail.format(t)) for n, t in zip((8, 16, 24), tails))
            kernel = count("\n".join(loops), FP8.format(8, 6, 3))
            expected = [{f"QGMMA.64x{t}x32.F32.E5M2.E4M3": 1} for t in tails]
            self.assertEqual([multiplies for _, multiplies in kernel.stray], expected)
            found = [text for text in count_sass.problems([kernel]) if "in no loop" in text]
            self.assertEqual(len(found), 0 if fine else 1, tails)

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
        for other in ("HMMA.1688.F32", "HGMMA.64x8x32.F32", "QGMMA.64x8x64.F32", "IMMA.16832.S8.S8"):
            with self.assertRaisesRegex(sass.Unreadable, "unknown", msg=other):
                count(LOOP.replace("HMMA.16816.F32 R28", f"{other} R28"))
        with self.assertRaisesRegex(sass.Unreadable, "unknown"):
            count(qloop(8).replace("R52, R28", "R52, gdesc[UR20]"))  # weights from shared memory are of all four warps

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
        place = "experts<fp16, mxfp4, 4>: loop at 0x10 for 8 rows"
        long = count(LOOP.replace("BREV", "FMUL R9, R9, R9\n" * 20 + "BREV"))
        self.assertEqual(count_sass.problems([long]), [f"{place}: 2.000 thread instructions a weight, at most 1.9"])
        alu = count(LOOP.replace("BREV", "SHF.L.U32 R9, R9, 0x1, RZ\n" * 10 + "BREV"))
        self.assertEqual(count_sass.problems([alu]), [f"{place}: 0.938 ALU slots a weight, at most 0.75"])

    def test_limits_are_those_of_the_arithmetic_and_the_rows(self):
        muls, shifts = ("FMUL R9, R9, R9\n", 14), ("SHF.L.U32 R9, R9, 0x1, RZ\n", 4)  # with those that QLOOP has
        for rows, total, alu in ((8, 1.73, 0.58), (16, 1.85, 0.54), (24, 2.24, 0.54)):
            for (more, has), most, what in ((muls, total, "thread instructions"), (shifts, alu, "ALU slots")):
                fits = int(most * 1024 / 32)
                found = []
                for slots in (fits, fits + 1):
                    code = qloop(rows).replace("FFMA", more * (slots - has) + "FFMA")
                    found += count_sass.problems([count(code, FP8.format(8, 6, 3))])
                place = f"experts<fp8, mxfp4, 8, 6>: loop at 0x0 for {rows} rows"
                expected = [f"{place}: {(fits + 1) / 32:.3f} {what} a weight, at most {most}"]
                self.assertEqual([text for text in found if "at most" in text], expected)

    def test_a_kernel_must_have_loops_for_all_its_rows(self):
        found = count_sass.problems([count(LOOP, BOTH)])
        self.assertEqual(found, ["experts<fp16, nvfp4, 7, 5>: no loop for 16 rows, of up to 16"])
        found = count_sass.problems([count(qloop(8) + qloop(16, "wide"), FP8.format(8, 6, 3))])
        self.assertEqual(found, ["experts<fp8, mxfp4, 8, 6>: no loop for 24 rows, of up to 24"])
        for kernel, rows, missing in (
            (FP8.format(8, 0, 0), (8,), []),
            (FP8.format(8, 4, 2), (8, 16), []),
            (FP8.format(8, 4, 2), (16,), ["8"]),
            (FP8.format(8, 6, 3), (8, 16, 24), []),
            (FP8.format(8, 6, 3), (8, 24), ["16"]),
            (FP8.format(8, 6, 3), (8,), ["16", "24"]),
        ):
            found = count_sass.problems([count("\n".join(qloop(n, f"of_{n}") for n in rows), kernel)])
            self.assertEqual([re.search(r"no loop for (\d+) rows", text)[1] for text in found], missing)

    def test_a_kernel_without_a_limit_is_a_problem(self):
        found = count_sass.problems([count(LOOP, "_ZN5moxie6other_EvNS1_4CallE")])
        self.assertIn("no limit", found[0])

    def test_names_are_read_from_symbols(self):
        for symbol, expected in (
            (NARROW, ("experts", ("fp16", "mxfp4"), (), ("4",), 1)),
            (BOTH, ("experts", ("fp16", "nvfp4"), (), ("7", "5"), 2)),
            (FP8.format(8, 0, 0), ("experts", ("fp8", "mxfp4"), (), ("8",), 1)),
            (FP8.format(8, 6, 3), ("experts", ("fp8", "mxfp4"), (), ("8", "6"), 3)),
            (
                "_ZN5moxie4cuda4sm9013small_expertsINS1_3Fp8ELi8EEEvNS1_4CallE",
                ("small_experts", ("fp8", "mxfp4"), (), ("8",), 1),
            ),
            (
                "_ZN5moxie4cuda4sm9013small_expertsINS1_4Fp16ILNS_11BlockFormatE0EEELi7EEEvNS1_4CallE",
                ("small_experts", ("fp16", "mxfp4"), (), ("7",), 1),
            ),
            ("_ZN5moxie4cuda4sm908tap_actsENS1_4CallE", ("tap_acts", (), (), (), 0)),
            ("plain", ("plain", (), (), (), 0)),
        ):
            self.assertEqual(count_sass.name_of(symbol), expected)
        convert = "_ZN5moxie4cuda4sm907convertILNS_11BlockFormatE1ELNS2_9DirectionE0EEEvNS2_3JobE"
        self.assertEqual(count_sass.name_of(convert), ("convert", ("nvfp4",), ("Direction 0",), (), 0))

    def test_labels_tell_arithmetic_format_and_stages_in_flight(self):
        labels = [count("EXIT", symbol).label for symbol in (NARROW, BOTH, FP8.format(8, 6, 3), "plain")]
        expected = ["experts<fp16, mxfp4, 4>", "experts<fp16, nvfp4, 7, 5>", "experts<fp8, mxfp4, 8, 6>", "plain"]
        self.assertEqual(labels, expected)

    def test_experts_with_other_arguments_are_refused(self):
        for symbol in (
            FP8.replace("3Fp8", "3Fp9").format(8, 6, 3),
            FP8.format(8, 6, 3).replace("ELi3E", "E"),
            "_ZN5moxie4cuda4sm907expertsILNS_11BlockFormatE0ELi7ELi5ELi2EEEvNS1_4CallE",
        ):
            with self.assertRaisesRegex(sass.Unreadable, "its template arguments are unknown", msg=symbol):
                count_sass.name_of(symbol)

    def test_the_table_has_a_line_for_equal_loops_and_one_for_a_kernel_without_a_loop(self):
        twice = LOOP.replace("EXIT", LOOP.replace("loop", "again"))
        once = LOOP.replace("loop", "third").replace("BREV", "NOP\n BREV")
        lines = count_sass.table([count(twice.replace("EXIT", once)), count("EXIT", "plain")]).splitlines()
        start = "| `experts<fp16, mxfp4, 4>` | 96 | 0 | 8 |"
        self.assertEqual(lines[2], f"{start} 2 | 512 | 0.750 | 0.312 | 5 | 1 | 1 | 2 | 1 | 0 | 2 |")
        self.assertEqual(lines[3], f"{start} 1 | 512 | 0.812 | 0.312 | 5 | 1 | 1 | 2 | 1 | 0 | 3 |")
        self.assertEqual(lines[4].split("|")[1:4], [" `plain` ", " 96 ", " 0 "])
        self.assertEqual({line.count("|") for line in lines}, {16})
        self.assertEqual(len(lines), 5)


if __name__ == "__main__":
    unittest.main()
