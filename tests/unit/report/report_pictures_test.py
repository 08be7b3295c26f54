"""Pictures show what is in a run's folder; layouts are read as the C++ side means them."""

import itertools
import json
import math
import re
import struct
import tempfile
import unittest
import warnings
from pathlib import Path
from xml.etree import ElementTree

import report_packages

import case_view  # noqa: E402
import error_budget  # noqa: E402
import error_heatmap  # noqa: E402
import example_run  # noqa: E402
import guilty_tensor  # noqa: E402
import layouts  # noqa: E402
import mesh_picture  # noqa: E402
import numpy as np  # noqa: E402
import pictures  # noqa: E402
import route_picture  # noqa: E402
import run_data  # noqa: E402
import tensor_file  # noqa: E402
import timeline_picture  # noqa: E402
import token_picture  # noqa: E402
from said import SaidTest  # noqa: E402


class Routes(SaidTest):
    """Two ranks, a router of four experts of which nobody chooses the last one."""

    def case(self, **of_first):
        def rank(number, rows, margins):
            layers = {"model.layers.10.mlp.gate": {"rows": rows, "margins": margins},
                      "model.layers.2.mlp.gate": {"rows": [1, 1, 1, 1], "margins": []}}
            return {"rank": number, "metrics": {"routes": {"layers": layers, "dropped": [0, 7]}}}
        first = rank(0, [5, 0, 3, 0], [0.001, 0.02, 0.03, 0.04, 0.5])
        first["metrics"]["routes"].update(of_first)
        return {"ranks": [first, rank(1, [2, 6, 0, 0], [0.01, 0.02, 0.03, 0.04, 0.9]), {"rank": 2, "metrics": {}}]}

    def test_rows_of_each_rank_their_sum_and_the_margins_are_in_the_picture(self):
        drawn = route_picture.draw(self.case())
        self.assertEqual([picture.caption for picture in drawn],
                         ["layers.2.mlp.gate: rows of each expert", "layers.10.mlp.gate: rows of each expert"])
        texts = texts_of(drawn[1:])
        self.assertEqual(texts[:5], ["rank 0", "5", "0", "3", "0"])
        self.assertEqual(texts[texts.index("all"):][:5], ["all", "7", "6", "3", "0"])
        self.assertIn("margin 0.001 to 0.9", texts)
        self.assertNotIn("margin", " ".join(ElementTree.fromstring(drawn[0].svg).itertext()))
        self.says(route_picture.explain(self.case()), "The least of all is 0.001.",
                  "dropped for lack of capacity, step by step: 0, 7.")

    def test_a_case_without_routers_has_no_such_picture(self):
        self.assertEqual(route_picture.draw({"ranks": [{"rank": 0, "metrics": {"loss": 1}}]}), [])

    def test_margins_that_do_not_fit_are_left_out_and_many_experts_are_not_drawn(self):
        odd = {"model.layers.10.mlp.gate": {"rows": [5], "margins": ["nan", 1]}}
        case = self.case(layers=odd)
        self.assertEqual(len(route_picture.draw(case)), 2)
        self.assertIn("The least of all is 0.01.", route_picture.explain(case))
        case = self.case(layers={"model.layers.10.mlp.gate": {"rows": [1] * 65, "margins": []}})
        self.assertEqual(len(route_picture.draw(case)), 1)

    def test_rows_that_are_no_counts_contradict_the_schema(self):
        self.assertIsNone(run_data.fault(self.case()["ranks"][0], run_data.RANK))
        case = self.case(layers={"a": {"rows": [1, -1], "margins": []}})
        self.assertEqual(run_data.fault(case["ranks"][0], run_data.RANK),
                         (".metrics.routes.layers.a.rows[1]", "is -1, which is not a count"))


class VirtualTime(SaidTest):
    EVENTS = [(0.0, 0.01, "compute", "compute"), (0.01, 0.02, "waiting", "all_reduce tp"),
              (0.03, 0.02, "exposed", "all_reduce tp"), (0.03, 0.02, "communication", "all_reduce tp")]

    def test_lanes_know_their_rank_by_its_number(self):
        events = [{"ph": "X", "name": "a", "cat": "communication", "ts": 5, "dur": 5, "pid": 0, "tid": 9,
                   "args": {"rank": 1}}, {"ph": "X", "name": "b", "cat": "compute", "ts": 0, "dur": 5, "pid": 0,
                                          "tid": 1, "args": {"rank": 1}}]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "timeline.json").write_text(json.dumps({"traceEvents": events}))
            self.assertEqual(len(run_data.read_timelines(folder)[0][1]), 2)

    def test_the_picture_says_which_time_it_shows(self):
        self.assertTrue(timeline_picture.is_virtual({0: self.EVENTS}))
        self.assertFalse(timeline_picture.is_virtual({0: [(0, 1, "wait", "x"), (0, 1, "communication", "x")]}))
        pictures, key = timeline_picture.draw({0: self.EVENTS, 1: []})
        self.assertEqual(len(pictures), 1)
        self.assertEqual([text for _, text in key], ["compute", "waiting", "exposed communication", "transfer"])
        self.assertEqual(timeline_picture.draw({0: []}), ([], []))

    def test_a_column_shows_what_fills_most_of_it_and_no_event_is_lost(self):
        columns = timeline_picture.COLUMNS
        events = [(0.0, 0.5, "a", ""), (0.5, 0.1, "b", ""), (0.75, 1e-9, "b", ""), (1.0, 0.0, "a", "")]
        filled = timeline_picture.fill(events, ["a", "b"], 1.0)
        at = lambda share: filled[int(share * columns)]
        self.assertEqual([at(0.25), at(0.55), at(0.7), at(0.75), filled[-1]], [0, 1, -1, 1, 0])

    def test_actions_of_a_stage_are_drawn_where_it_computes(self):
        events = [(0.0, 4.0, "compute", "compute"), (4.0, 3.0, "waiting", "recv"), (7.0, 3.0, "compute", "compute"),
                  (1.0, 3.0, "action", "F2"), (4.0, 5.0, "action", "B2.1")]
        drawn, numbers = timeline_picture.by_action(events)
        self.assertEqual(numbers, [(1.0, 3.0, 2, "forward"), (7.0, 2.0, 2, "backward 1")])
        self.assertIn((7.0, 2.0, "backward 1", ""), drawn)
        self.assertIn((1.0, 3.0, "forward", ""), drawn)
        pictures, key = timeline_picture.draw({0: events}, "Bubble: 1%.")
        key = [text for _, text in key]
        self.assertEqual(pictures[0].caption, "Bubble: 1%. Numbers are those of microbatches; a lighter color is a later "
                         "chunk of the rank.")
        one_chunk = [event for event in events if event[3] != "B2.1"]
        self.assertEqual(timeline_picture.draw({0: one_chunk})[0][0].caption, "Numbers are those of microbatches.")
        cut = [(0.0, 1.0, "compute", ""), (1.0, 0.2, "exposed", ""), (1.2, 1.0, "compute", ""), (0.0, 2.2, "action", "F7")]
        self.assertEqual(timeline_picture.by_action(cut)[1], [(0.0, 2.2, 7, "forward")])
        self.assertEqual(key, ["forward", "backward", "compute", "waiting"])
        wall = [(0.0, 4.0, "communication", "recv"), (1.0, 2.0, "action", "W0"), (3.0, 1.0, "action", "?")]
        self.assertEqual(timeline_picture.by_action(wall)[1], [(1.0, 2.0, 0, "weight gradients")])
        self.assertEqual([text for _, text in timeline_picture.draw({0: wall})[1]], ["communication", "weight gradients"])

    def test_the_words_beside_it_say_where_the_time_went(self):
        case = {"virtual_time": {"total_us": 90, "ranks": [
            {"rank": 0, "compute_us": 50, "waiting_us": 20, "exposed_us": 20, "communication_us": 35},
            {"rank": 1, "compute_us": 30, "waiting_us": 0, "exposed_us": 35, "communication_us": 35}],
            "critical_path_shares": [{"what": "rank 1 compute", "duration_us": 30}]}}
        self.says(timeline_picture.explain(case), "Virtual time 0.090 ms", "computing 0.040 ms", "rank 1 compute 33%")
        case["virtual_time"] |= {"bubble": 0.25, "bubble_formula": 0.125}
        self.assertIn("Bubble: 25.0% measured, 12.5% by the schedule's formula, which leaves out embedding, head and "
                      "messages. ", timeline_picture.bubble(case))
        del case["virtual_time"]["bubble_formula"]
        self.assertIn("Bubble: 25.0% measured. ", timeline_picture.bubble(case))
        for odd in (None, [], {"total_us": "nan", "ranks": [{}]}, {"ranks": None}):
            self.assertTrue(timeline_picture.explain({"virtual_time": odd}))
            self.assertEqual(timeline_picture.bubble({"virtual_time": odd}), "")


class Layouts(unittest.TestCase):
    AXES = (("dp", 2), ("tp", 3))

    def held(self, layout, size, axes=AXES, parts=()):
        mesh = layouts.Mesh(tuple(axes), parts)
        cuts = layouts.parse(layout)
        return [layouts.indices(cuts, 0, 1, size, mesh, rank) for rank in range(mesh.size())]

    def test_joint_axes_blocks_and_parts(self):  # as in tests/unit/mesh/mesh_test.cpp
        axes = [("dp", 2), ("cp", 2), ("tp", 2)]
        self.assertEqual(self.held("S(0)dp+cp", 4, axes), [[0], [0], [1], [1], [2], [2], [3], [3]])
        self.assertEqual(self.held("S(0)dp+tp", 4, axes), [[0], [1], [0], [1], [2], [3], [2], [3]])
        self.assertEqual(self.held("S(0)dp+cp%2", 2, axes), [[0], [0], [1], [1]] * 2)
        self.assertEqual(self.held("S(0)dp+cp//2", 2, axes), [[0]] * 4 + [[1]] * 4)
        self.assertEqual(self.held("S(0)dp+cp:padded8", 5, axes), [[0, 1]] * 2 + [[2, 3]] * 2 + [[4]] * 2 + [[]] * 2)
        self.assertEqual(self.held("S(0)ep", 4, axes, (("ep", 2, 4),)), [[0], [0], [1], [1], [2], [2], [3], [3]])
        for unknown in ("S(0)ep", "S(0)dp%0", "S(0)dp//3"):
            self.assertEqual(layouts.holders(layouts.parse(unknown), [4], layouts.Mesh(tuple(axes))), [])

    def test_each_kind_of_cut_keeps_what_its_picture_shows(self):  # as in tests/unit/mesh/layout_test.cpp
        tp = [("tp", 3)]
        self.assertEqual(self.held("S(0)tp", 6, tp), [[0, 1], [2, 3], [4, 5]])
        self.assertEqual(self.held("S(0)tp", 7, tp), [[0, 1, 2], [3, 4, 5], [6]])
        self.assertEqual(self.held("S(0)tp:padded9", 7, tp), [[0, 1, 2], [3, 4, 5], [6]])
        self.assertEqual(self.held("B(0)tp:6|3", 9, tp), [[0, 1, 6], [2, 3, 7], [4, 5, 8]])
        self.assertEqual(self.held("Z(0)tp", 12, tp), [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]])
        self.assertEqual(self.held("S(0)tp:parts1", 2, tp), [[0, 1]] * 3)
        self.assertEqual(self.held("S(0)tp:parts2", 4, [("tp", 4)]), [[0, 1], [0, 1], [2, 3], [2, 3]])
        self.assertEqual(self.held("R", 2, tp), [[0, 1]] * 3)

    def test_cuts_of_one_dim_compose_in_order(self):
        self.assertEqual(self.held("S(0)tp S(0)dp", 9), [[0, 1], [3, 4], [6, 7], [2], [5], [8]])

    def test_holders_group_the_ranks_with_equal_copies(self):
        self.assertEqual(layouts.holders(layouts.parse("S(1)tp"), [4, 6], layouts.Mesh(self.AXES)),
                         [([0, 3], (((0, 4),), ((0, 2),))), ([1, 4], (((0, 4),), ((2, 2),))),
                          ([2, 5], (((0, 4),), ((4, 2),)))])

    def test_text_that_is_no_layout_is_told_apart(self):
        self.assertIsNone(layouts.parse("replicated over everything"))
        self.assertEqual(layouts.parse(""), [])

    def test_one_parameter_stands_for_each_layout(self):
        shown = mesh_picture.representatives({"a": ("S(0)tp", [4, 4]), "b": ("S(0)tp", [8, 4]), "c": ("", [4]),
                                              "odd": ("?", [4]), "scalar": ("", [])})
        self.assertEqual(shown, [("a", "S(0)tp", [4, 4], 2), ("c", "", [4], 1)])


def tensor_bytes(arrays):
    """A safetensors file of float64 and int64 arrays."""
    header, data = {"__metadata__": {"case": "x"}}, b""
    for name, array in arrays.items():
        code = {"f": "F64", "i": "I64"}[array.dtype.kind]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def piece(rank, golden, actual, index, name="grad.w"):
    stem = f"rank{rank}/{name}"
    return {stem + "/golden": golden, stem + "/actual": actual, stem + "/index": index}


class GuiltyTensor(SaidTest):
    """[4, 6] cut over the columns of tp=2; rank 1's half is wrong at two places."""

    def setUp(self):
        self.golden = np.arange(24, dtype=float).reshape(4, 6) / 7
        self.index = np.arange(24).reshape(4, 6)
        self.actual = self.golden.copy()
        self.actual[1, 4] += 0.5
        self.actual[3, 5] -= 2.0
        half = np.s_[:, 3:]
        self.arrays = piece(1, self.golden[half].copy(), self.actual[half].copy(), self.index[half].copy())
        self.case = example_run.case(0, "tp/wrong", [("tp", 2)], "mismatch", "values", as_expected=False)
        row = {"rank": 1, "bad_count": 2, "count": 12, "global_shape": [4, 6], "local_shape": [4, 3],
               "layout": "S(1)tp", "allowance": 1e-12, "worst_ratio": 2e12, "worst_global_index": [3, 5],
               "golden_value": float(self.golden[3, 5]), "actual_value": float(self.actual[3, 5])}
        self.case["divergence"] = {"tensor": "grad.w", "phase": "step", "step": 1, "ranks": [1], "worst": row,
                                   "last_good": "y", "collectives": ["all_reduce(sum) tp[0,1] [4,6] float64 w"]}
        self.case["tensors"] = [{"name": "grad.w", "phase": "step", "step": 1, "ok": False, "layout": "S(1)tp",
                                 "worst_ratio": 2e12, "ratio": [0.1, 2e12], "wrong": [row]}]
        self.case["ranks"] = [{"rank": r, "coordinates": {"tp": r}, "ending": "finished"} for r in (0, 1)]

    def whole(self):
        return guilty_tensor.put_together(self.case, self.arrays)

    def view(self, content=None):
        with tempfile.TemporaryDirectory() as folder:
            if content is not None:
                (Path(folder) / "tensors").mkdir()
                (Path(folder) / "tensors" / "a.safetensors").write_bytes(content)
            self.case["files"] = ["tensors/a.safetensors"]
            return case_view.guilty_of(self.case, folder)

    def test_lies_where_the_ranks_say_and_what_nobody_sent_stays_empty(self):
        whole = self.whole()
        grid = whole.actual.reshape(4, 6)
        self.assertTrue(np.isnan(grid[:, :3]).all())
        self.assertTrue((grid[:, 3:] == self.actual[:, 3:]).all())

    def test_count_and_worst_element_are_those_of_the_judge(self):
        row = self.case["divergence"]["worst"]  # [3, 5] has the larger error and an allowance of its own
        row.update(bad_count=1, worst_global_index=[1, 4], golden_value=self.golden[1, 4],
                   actual_value=self.actual[1, 4])
        self.says(self.view(tensor_bytes(self.arrays))["caption"],
                  "1 of 12 elements of rank 1 are wrong. Worst (diamond): [1, 4] golden 1.42857, actual 1.92857.",
                  "Colors show errors, not which elements are over their allowances.", absent=["[3, 5]", "2 of 12"])
        self.assertEqual(self.whole().worst, 1 * 6 + 4)
        row["microbatch"] = 2
        self.assertIn("elements of rank 1, microbatch 2 are wrong", guilty_tensor.caption(self.case, self.whole()))

    def test_where_the_judge_counts_no_element_none_is_marked(self):
        self.case["divergence"]["worst"].update(bad_count=0, worst_global_index=[], allowance=0)
        self.says(guilty_tensor.caption(self.case, self.whole()), "No element is counted as wrong.", absent=["Worst"])
        self.assertEqual(self.whole().worst, -1)
        self.assertEqual(len(guilty_tensor.draw(self.case, self.whole())), 3)

    def test_says_which_rank_holds_which_part_also_of_what_was_right(self):
        label, groups = guilty_tensor.owners(self.case, self.whole())
        owner = [[groups[cell] for cell in row] for row in label.reshape(4, 6)]
        self.assertEqual(owner, [[(0,)] * 3 + [(1,)] * 3] * 4)

    def test_an_error_that_is_no_number_is_the_largest_and_equal_values_have_none(self):
        self.case["divergence"]["worst"].update(global_shape=[4, 100], worst_global_index=[])
        golden = np.ones((4, 100))
        for value in (math.nan, math.inf):
            golden[0, 0] = value
            actual = golden.copy()
            actual[1, 50], actual[1, 51] = value, 1e6  # of one block
            self.arrays = piece(1, golden, actual, np.arange(400).reshape(4, 100))
            self.assertEqual(self.whole().difference()[0], 0)
            self.assertIn(150, guilty_tensor.chosen_elements(self.whole())[0])
            self.assertEqual(len(guilty_tensor.draw(self.case, self.whole())), 3)

    def test_values_near_the_largest_are_drawn(self):
        self.case["divergence"]["worst"].update(global_shape=[4, 100], worst_global_index=[1, 50])
        for value, right in ((2.9e307, 1.0), (1.7e308, 1.0), (1.7e308, -1.7e308)):
            golden = np.ones((4, 100))
            golden[1, 50], actual = right, golden.copy()
            actual[1, 50] = value
            for where in (np.s_[:], np.s_[1:2, 50:51]):  # among others, and alone
                self.arrays = piece(1, golden[where], actual[where], np.arange(400).reshape(4, 100)[where])
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    self.assertEqual(len(guilty_tensor.draw(self.case, self.whole())), 3)

    def test_addends_are_summed(self):
        self.case["divergence"]["worst"].update(partial=True, partial_axes=["tp"])
        whole = self.index
        self.arrays = {**piece(0, self.golden, self.golden / 4, whole), **piece(1, self.golden, self.golden / 2, whole)}
        self.assertTrue(np.allclose(self.whole().actual, 0.75 * self.golden.ravel()))
        self.case["mesh"]["axes"].insert(0, {"name": "dp", "size": 2})  # copies of the sum are not summed
        self.arrays |= {**piece(2, self.golden, self.golden / 4, whole), **piece(3, self.golden, self.golden / 2, whole)}
        self.assertTrue(np.allclose(self.whole().actual, 0.75 * self.golden.ravel()))

    def test_addends_of_other_peers_are_summed_where_they_lie(self):
        self.case["divergence"]["worst"].update(partial=True, partial_axes=["tp"])
        self.case["mesh"]["axes"].insert(0, {"name": "dp", "size": 2})
        self.arrays = {}
        for rank in range(4):
            rows = np.s_[:2] if rank < 2 else np.s_[1:]  # row 1 is of both, and shown of the worst rank's peers
            self.arrays |= piece(rank, self.golden[rows], self.golden[rows] * (rank + 1), self.index[rows])
        self.assertTrue(np.allclose(self.whole().actual.reshape(4, 6), self.golden * [[3], [3], [7], [7]]))

    def test_an_element_that_the_tensor_has_not_is_not_marked(self):
        for index in ([4, 0], [3], [-1, 5], [3, 5, 0]):
            self.case["divergence"]["worst"]["worst_global_index"] = index
            self.assertEqual(self.whole().worst, -1)

    def test_of_copies_the_worst_ranks_own_is_shown_else_the_lowest(self):
        self.case["divergence"]["worst"]["rank"] = 3
        self.arrays = {name: array for rank in (2, 0, 1)
                       for name, array in piece(rank, self.golden, self.golden + rank, self.index).items()}
        self.assertTrue((self.whole().actual == self.golden.ravel()).all())

    def test_of_copies_the_worst_ranks_own_is_shown(self):
        whole = self.index
        self.arrays = {**piece(0, self.golden, self.golden + 1, whole), **piece(1, self.golden, self.actual, whole)}
        self.assertTrue((self.whole().actual == self.actual.ravel()).all())

    def test_no_extreme_is_lost_in_a_picture_of_blocks(self):
        golden = np.ones((300, 500))
        for place in ((0, 0), (299, 499), (137, 256)):
            actual = golden.copy()
            actual[place] += 1e-3
            self.case["divergence"]["worst"].update(global_shape=[300, 500], layout="", worst_global_index=[])
            self.arrays = piece(1, golden, actual, np.arange(golden.size).reshape(golden.shape))
            chosen, _, _ = guilty_tensor.chosen_elements(self.whole())
            self.assertEqual(chosen.shape, (64, 64))
            self.assertIn(place[0] * 500 + place[1], chosen)
        self.case["divergence"]["worst"]["worst_global_index"] = [137, 257]  # beside the one with the largest error
        self.assertIn(137 * 500 + 257, guilty_tensor.chosen_elements(self.whole())[0])
        self.assertIn("Drawn in 64 x 64 blocks", guilty_tensor.caption(self.case, self.whole()))

    def test_shows_golden_actual_and_difference_with_their_holders(self):
        view = self.view(tensor_bytes(self.arrays))
        self.assertEqual([picture.caption for picture in view["pictures"]], ["golden", "actual", "actual - golden"])
        for picture in view["pictures"]:
            self.assertEqual(texts_of([picture]), ["rank 0", "rank 1"])
        self.assertEqual([(row["wrong"], row["count"], row["ratio"]) for row in view["rows"]], [(2, 12, 2e12)])
        self.assertEqual((view["last_good"], len(view["collectives"])), ("y", 1))

    def test_a_scalar_is_shown_as_numbers(self):
        row = {"rank": 1, "bad_count": 1, "count": 1, "allowance": 5e-10, "golden_value": 4.966048299686997,
               "actual_value": 6.150425733019005}
        for shape in ([], [1], [1, 1]):
            self.case["divergence"]["worst"] = {**row, "global_shape": shape}
            self.arrays = piece(1, np.full(shape, 4.966048299686997), np.full(shape, 6.150425733019005),
                                np.zeros(shape, int))
            view = self.view(tensor_bytes(self.arrays))
            self.assertEqual(view["pictures"], [])
            self.assertEqual(view["numbers"], [("golden", "4.96604829969"), ("actual", "6.15042573302"),
                                               ("actual - golden", "1.18438"), ("allowance", "5e-10")])
        # A rank that holds one element of a larger tensor, and a row without a wrong element, which has no shape.
        for other in ({"global_shape": [24]}, {"global_shape": [], "count": 480}, {}):
            self.case["divergence"]["worst"] = {**row, **other}
            self.assertEqual(guilty_tensor.scalar(self.case), [])

    def test_a_missing_or_damaged_file_leaves_the_words(self):
        good = tensor_bytes(self.arrays)
        for content in (None, b"", good[:40], good[:-8], b"\xff" * 64):
            view = self.view(content)
            self.assertEqual((view["pictures"], len(view["rows"])), ([], 1))

    def test_an_index_outside_of_the_tensor_is_not_drawn(self):
        self.arrays["rank1/grad.w/index"][0, 0] = 24
        self.assertIsNone(self.whole())

    def test_only_files_below_the_runs_folder_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            run.mkdir()
            (Path(folder) / "a.safetensors").write_bytes(tensor_bytes(self.arrays))
            for name in ("../a.safetensors", str(Path(folder) / "a.safetensors")):
                self.case["files"] = [name]
                self.assertEqual(case_view.guilty_of(self.case, run)["pictures"], [])

    def test_pieces_are_told_apart_by_step_and_microbatch(self):
        arrays = {**piece(1, self.golden, self.actual, self.index, "grad.w@2#1"), **self.arrays}
        self.assertEqual([(p.rank, p.microbatch) for p in tensor_file.pieces_of(arrays, "grad.w", 2)], [(1, 1)])
        self.assertEqual([p.microbatch for p in tensor_file.pieces_of(arrays, "grad.w", 1)], [0])


def token_case():
    """Lengths 3, 1 and 5 packed on cp=2 zigzag, each padded to 4, 4 and 8; tp ranks say nothing of their own."""
    rows = [[[0, 0, 3], [-1, 0, 1], [1, 0, 1], [-1, 0, 3], [2, 0, 5], [-1, 0, 3]]]
    held = [[[[0, 0, 1], [-1, 0, 1], [1, 0, 1], [-1, 0, 1], [2, 0, 2], [-1, 0, 2]]],
            [[[0, 1, 2], [-1, 0, 2], [2, 2, 3], [-1, 0, 1]]]]
    place = lambda cp, tp: {"dp": 0, "cp": cp, "ulysses": 0, "tp": tp}
    return {"mesh": {"axes": [{"name": "dp", "size": 1}, {"name": "cp", "size": 2}, {"name": "ulysses", "size": 1},
                              {"name": "tp", "size": 2}]},
            "ranks": [{"rank": 0, "coordinates": place(0, 0),
                       "metrics": {"tokens_held": [{"rows": rows, "held": held[0]}]}},
                      {"rank": 1, "coordinates": place(0, 1), "metrics": {"loss": 1}},
                      {"rank": 2, "coordinates": place(1, 0), "metrics": {"tokens_held": [{"held": held[1]}]}},
                      {"rank": 3, "coordinates": place(1, 1)}]}


def dealt_case():
    """A sample of 4 positions for each place on dp=2 and parked=2, cut over cp=2; ranks of twin=2 hold the same."""
    names, ranks = ("twin", "dp", "cp", "parked"), []
    for rank, at in enumerate(itertools.product(range(2), repeat=len(names))):
        place = dict(zip(names, at))
        sample = 2 * place["dp"] + place["parked"]
        held = [[sample, 1, 2]] if place["cp"] else [[sample, 0, 1], [sample, 3, 1]]
        micro = {"held": [held]} if place["cp"] or place["twin"] else {"held": [held], "rows": [[[sample, 0, 4]]]}
        ranks.append({"rank": rank, "coordinates": place, "metrics": {"tokens_held": [micro]}})
    return {"mesh": {"axes": [{"name": name, "size": 2} for name in names]}, "ranks": ranks}


class Tokens(unittest.TestCase):
    def test_samples_may_be_dealt_over_any_axes(self):
        batch, *shares = token_picture.strips(dealt_case())
        self.assertEqual([label for label, _ in batch[1]], [f"sample {i}" for i in range(4)])
        self.assertEqual([heading for heading, _ in shares],
                         [f"dp {dp} parked {parked}, microbatch 0" for dp in (0, 1) for parked in (0, 1)])
        self.assertEqual([label for label, _ in shares[1][1]], ["whole row", "rank 1: cp 0", "rank 3: cp 1"])
        for sample, (_, (whole, *parts)) in enumerate(shares):
            self.assertEqual(whole[1], [(sample, i) for i in range(4)])
            self.assertEqual(sorted(token for _, tokens in parts for token in tokens), whole[1])
        self.assertIn("differ along twin alone hold the same tokens", token_picture.explain(dealt_case()))
        self.assertIn("differ along tp alone hold the same tokens", token_picture.explain(token_case()))

    def test_strips_of_the_batch_of_a_row_and_of_each_rank(self):
        (batch, samples), (row, parts) = token_picture.strips(token_case())
        self.assertEqual(batch, "the batch, each sequence alone")
        self.assertEqual(samples, [("sample 0", [(0, 0), (0, 1), (0, 2)]), ("sample 1", [(1, 0)]),
                                   ("sample 2", [(2, i) for i in range(5)])])
        self.assertEqual(row, "microbatch 0, packed")
        self.assertEqual([label for label, _ in parts], ["whole row", "rank 0: cp 0", "rank 2: cp 1"])
        self.assertEqual(parts[1][1], [(0, 0), None, (1, 0), None, (2, 0), (2, 1), None, None])
        self.assertEqual(sorted(filter(None, parts[1][1] + parts[2][1])), sorted(filter(None, parts[0][1])))

    def test_it_is_drawn_once_and_not_where_nothing_is_packed_or_cut(self):
        self.assertEqual([picture.caption for picture in token_picture.draw(token_case())],
                         ["the batch, each sequence alone", "microbatch 0, packed"])
        self.assertEqual(token_picture.draw({"mesh": {"axes": []}, "ranks": []}), [])
        alone = token_case()
        alone["mesh"]["axes"][1]["size"] = 1
        alone["ranks"] = alone["ranks"][:1]
        alone["ranks"][0]["metrics"]["tokens_held"] = [{"rows": [[[0, 0, 3], [-1, 0, 1]]], "held": [[[0, 0, 3]]]}]
        self.assertEqual(token_picture.draw(alone), [])

    def test_neighboring_positions_have_one_label(self):
        tokens = [(2, 0), (2, 1), None, (2, 5), (0, 6), (0, 7)]
        self.assertEqual(token_picture.stretches(tokens), [(0, (2, 0), 2), (3, (2, 5), 1), (4, (0, 6), 2)])

    def test_later_tokens_are_lighter_and_padding_has_its_own_grey(self):
        shades = [token_picture._shade((2, i), {0: 3, 2: 5}) for i in range(5)]
        self.assertEqual(shades, sorted(shades))
        self.assertEqual(token_picture._shade(None, {0: 3}), token_picture.PADDING)

    def test_too_long_rows_and_too_many_microbatches_are_left_out(self):
        case = token_case()
        held = case["ranks"][0]["metrics"]["tokens_held"]
        case["ranks"][2]["metrics"]["tokens_held"] *= 40
        case["ranks"][0]["metrics"]["tokens_held"] = held * 40
        drawn = token_picture.draw(case)
        self.assertIn(f"{41 - len(drawn)} microbatches more are not drawn", drawn[-1].caption)
        held[0]["rows"] = [[[0, 0, 400]]]
        self.assertEqual(token_picture.draw(case), [])


class Mesh(unittest.TestCase):
    def test_a_dim_that_no_picture_can_hold_is_left_out(self):
        self.assertEqual(mesh_picture.representatives({"a": ("S(0)tp", [1 << 40]), "b": ("S(0)tp", [0])}), [])

    def test_a_mesh_is_drawn_with_its_ranks_and_one_rank_alone_is_not(self):
        case = {"mesh": {"axes": [{"name": "dp", "size": 2}, {"name": "tp", "size": 3}]}}
        ranks, weight = mesh_picture.draw(case, {"w": ("S(1)tp", [4, 6])})
        self.assertEqual(texts_of([ranks])[:4], ["0", "dp0 tp0", "1", "dp0 tp1"])
        self.assertEqual(texts_of([weight]), ["0, 3", "1, 4", "2, 5"])
        self.assertEqual(mesh_picture.draw({"mesh": {"axes": [{"name": "tp", "size": 1}]}}, {"w": ("", [4])}), [])

    def test_ranks_that_do_not_fit_are_not_mistaken_for_a_range(self):
        self.assertEqual(mesh_picture._piece_label([0, 8, 16], 200), "0, 8, 16")
        self.assertEqual(mesh_picture._piece_label(list(range(0, 64, 8)), 100), "0, 8 .. 56")
        self.assertEqual(mesh_picture._piece_label([10], 5), "")


class Numbers(unittest.TestCase):
    def test_what_json_cannot_hold_is_read_from_text(self):
        self.assertTrue(math.isnan(run_data.number("nan")))
        self.assertEqual(run_data.number("-inf"), -math.inf)
        self.assertTrue(math.isnan(run_data.number(None)))
        self.assertEqual(run_data.number(3), 3.0)

    def test_a_share_that_is_not_a_number_counts_as_infinite(self):
        grid = error_heatmap.ratio_grid([{"ratio": [None, "nan", 0.5, "inf"]}], 4)
        self.assertTrue(math.isnan(grid[0, 0]))
        self.assertEqual(list(grid[0, 1:]), [math.inf, 0.5, math.inf])
        self.assertEqual(error_budget.budget({"tensors": [{"worst_ratio": "nan"}]}), [math.inf])

    def test_wrong_tensors_are_always_among_the_drawn(self):
        tensors = [{"name": str(i), "ok": i != 3, "worst_ratio": 0.9} for i in range(100)]
        tensors[3]["worst_ratio"] = 0.1  # wrong for another reason than its values
        rows = error_heatmap.chosen_tensors({"tensors": tensors}, 5)
        self.assertIn("3", [row["name"] for row in rows if isinstance(row, dict)])


def texts_of(pictures):
    """The texts of pictures, one after the other."""
    return [text.text for picture in pictures for text in ElementTree.fromstring(picture.svg).iter("text")]


def late_case(count=354, finding=100):
    """All tensors from the finding on are wrong, each more than the one before it."""
    tensors = [{"name": f"t{i}", "phase": "forward", "step": 1, "order": i, "ok": i < finding,
                "worst_ratio": 0.5 if i < finding else 2.0 + i, "ratio": [0.5, 0.5 if i < finding else 2.0 + i]}
               for i in range(count)]
    return {"world_size": 2, "tensors": tensors, "divergence": {"tensor": f"t{finding}", "phase": "forward", "step": 1}}


class ErrorsByTensor(unittest.TestCase):
    def names(self, case):
        return [text for text in texts_of(error_heatmap.draw(case)) if text not in ("0", "1", "rank")]

    def test_the_first_row_in_red_is_the_finding_among_its_neighbors(self):
        for finding in (0, 3, 100, 353):
            case, near = late_case(finding=finding), error_heatmap.NEIGHBORS
            rows = [row for row in error_heatmap.chosen_tensors(case) if isinstance(row, dict)]
            names = [row["name"] for row in rows]
            self.assertEqual(next(row["name"] for row in rows if not row["ok"]), f"t{finding}")
            for i in range(max(finding - near, 0), min(finding + near + 1, 354)):
                self.assertIn(f"t{i}", names)
            self.assertEqual(len(rows), error_heatmap.MOST_ROWS)
            self.assertIn("t353", names)  # the worst
            self.assertIn(f"t{finding}  << the finding", self.names(case))

    def test_the_finding_is_marked_also_where_each_rank_is_within_its_allowance(self):
        case = late_case()
        for tensor in case["tensors"]:
            tensor.update(ok=True, worst_ratio=0.5)
        case["tensors"][100]["worst_ratio"] = 0  # its copies differ in a bit
        self.assertIn("t100  << the finding", self.names(case))
        text = case_view.sections(case, {})[0].text
        self.assertIn("The error starts at t100, the marked row; each rank is within its allowance", text)

    def test_what_is_left_out_is_counted(self):
        case = late_case()
        rows = error_heatmap.chosen_tensors(case)
        shown = [row for row in rows if isinstance(row, dict)]
        left_out = [tensor for tensor in case["tensors"] if tensor not in shown]
        wrong = sum(not tensor["ok"] for tensor in left_out)
        self.assertEqual(error_heatmap.left_out(case), (354 - 48, wrong))
        self.assertIn(f"306 are left out, {wrong} of them wrong.", case_view.sections(case, {})[0].text)
        drawn = self.names(case)
        self.assertEqual(drawn[0], ".. 92 left out")
        at = drawn.index("t108")
        self.assertEqual(drawn[at + 1], ".. 214 left out, 214 wrong")
        self.assertEqual(drawn[at + 2], "t323")
        self.assertEqual(error_heatmap.left_out(late_case(48, 20)), (0, 0))
        right = late_case(354, 354)
        right["divergence"] = None
        self.assertNotIn("left out", " ".join(self.names(right)))  # but in the text above
        self.assertIn("306 are left out, none of them wrong.", case_view.sections({**right, "divergence": {}}, {})[0].text)

    def test_rows_are_in_the_order_in_which_they_are_judged(self):
        case = {"world_size": 1, "divergence": {"tensor": "b", "phase": "forward", "step": 1}, "tensors": [
            {"name": name, "phase": phase, "step": step, "order": order, "ok": False, "worst_ratio": 9, "ratio": [9]}
            for name, phase, step, order in (("a", "forward", 2, 0), ("a", "recompute", 1, 0), ("b", "forward", 1, 1),
                                             ("g", "backward", 1, 2), ("extra", "forward", 1, -1))]}
        self.assertEqual(self.names(case), ["b  step 1  << the finding", "a  recompute  step 1", "g  step 1", "a  step 2",
                                            "extra  step 1"])

    def test_a_finding_that_no_rank_has_reported_is_not_said_to_be_a_row(self):
        case = late_case()
        case["divergence"]["tensor"] = "loss"
        self.assertIn("The finding, loss, has no row", case_view.sections(case, {})[0].text)


class Width(unittest.TestCase):
    """Pictures of a wide screen, side by side."""

    def assert_fills(self, drawn, least):
        width = sum(float(ElementTree.fromstring(picture.svg).get("width")) for picture in drawn)
        width += pictures.GAP * (len(drawn) - 1)
        self.assertLessEqual(width, pictures.PAGE_WIDTH + 16)
        self.assertGreaterEqual(width, least * pictures.PAGE_WIDTH)

    def test_they_fill_most_of_it(self):
        for world_size in (1, 2, 8, 64):
            tensors = [{"name": f"model.layers.{i}.self_attn.o_proj.output", "worst_ratio": 0.1, "ratio": [0.1] * world_size}
                       for i in range(60)]
            with self.subTest(world_size=world_size):
                self.assert_fills(error_heatmap.draw({"world_size": world_size, "tensors": tensors}), 0.8)
        for count in (1, 12, 13, 40):
            cases = [{"name": f"case{i}", "verdict": "match", "tensors": [{"worst_ratio": 0.1}]} for i in range(count)]
            with self.subTest(count=count):
                self.assert_fills(error_budget.draw(cases), 0.9)
        self.assert_fills(timeline_picture.draw({0: [(0.0, 1.0, "a", "b")]})[0], 0.9)
        self.assert_fills(token_picture.draw(token_case()), 0.7)

    def test_golden_actual_and_difference_fit_beside_each_other(self):
        golden = np.arange(24, dtype=float).reshape(4, 6)
        for layout, parts in (("S(0)tp", (np.s_[:2], np.s_[2:])), ("S(1)tp", (np.s_[:, :3], np.s_[:, 3:]))):
            arrays = {}
            for rank, part in enumerate(parts):
                arrays |= piece(rank, golden[part].copy(), golden[part] + 1, np.arange(24).reshape(4, 6)[part])
            case = {"mesh": {"axes": [{"name": "tp", "size": 2}]}, "divergence": {
                "tensor": "grad.w", "step": 1, "worst": {"rank": 0, "global_shape": [4, 6], "layout": layout,
                                                         "allowance": 0.1}}}
            self.assert_fills(guilty_tensor.draw(case, guilty_tensor.put_together(case, arrays)), 0.85)


class Modes(unittest.TestCase):
    def test_texts_and_lines_take_their_colors_from_the_page(self):
        case = late_case()
        drawn = [*error_heatmap.draw(case), *timeline_picture.draw({0: VirtualTime.EVENTS})[0],
                 *token_picture.draw(token_case()), *error_budget.draw([{**case, "name": "x", "verdict": "mismatch"}]),
                 *mesh_picture.draw({"mesh": {"axes": [{"name": "tp", "size": 2}]}}, {"w": ("S(1)tp", [4, 6])})]
        style = (report_packages.REPORTS / "style.html").read_text(encoding="utf-8")
        modes = re.findall(r":root \{(.*?)\}", style, re.S)
        self.assertEqual(len(modes), 2)
        for color, name in pictures.OF_STYLE.items():
            self.assertTrue(any(f"var(--{name})" in picture.svg for picture in drawn) or name == "ink", name)
            self.assertFalse(any(color in picture.svg for picture in drawn), name)
            of_mode = [re.search(rf"--{name}: (#\w+);", mode)[1] for mode in modes]
            self.assertNotEqual(*of_mode)


if __name__ == "__main__":
    unittest.main()
