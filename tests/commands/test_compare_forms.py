"""The comparison of both forms on the user's own device."""
import math

import pytest

from mmrla.commands import compare_forms as compare
from mmrla.commands import doctor


def test_both_forms_agree_on_this_device():
    results = compare.compare_forms('cpu', size=64, rounds=1)
    assert set(results) == set(compare.CASES)
    for case, found in results.items():
        assert found['difference'] < compare.TOLERANCE, case
        assert found['saved'] < 1, case


@pytest.mark.parametrize('difference, level', [
    (1e-12, doctor.OK), (1e-3, doctor.PROBLEM), (math.nan, doctor.PROBLEM)])
def test_the_doctor_names_the_switch_if_the_forms_differ(difference, level, monkeypatch):
    answer = dict(device='cuda', tolerance=compare.TOLERANCE, cases={
        'RLA': dict(difference=difference, time=1.0, saved=0.6)})
    monkeypatch.setattr(doctor, 'ask', lambda code: (answer, ''))
    finding, = doctor.check_forms()
    assert finding.level == level
    assert ('MMRLA_MEMORY_SAVING=0' in finding.fix) == (level == doctor.PROBLEM)
