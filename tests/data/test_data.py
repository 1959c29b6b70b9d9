import torch

from torch_halo.data import DATASETS


def test_every_data_set_has_disjoint_splits_that_a_seed_fixes():
    for load in DATASETS.values():
        data, again, other = load(seed=0), load(seed=0), load(seed=1)
        sizes = [len(split.labels) for split in (data.train, data.validation, data.test)]
        assert sizes == [1079, 359, 359]
        assert sorted({int(label) for label in data.train.labels}) == list(range(data.classes))
        assert data.train.inputs.dtype == torch.float32
        assert torch.equal(data.test.inputs, again.test.inputs)
        assert not torch.equal(data.test.inputs, other.test.inputs)
        everything = sum(split.inputs.double().sum() for split in (data.train, data.validation, data.test))
        elsewhere = sum(split.inputs.double().sum() for split in (other.train, other.validation, other.test))
        torch.testing.assert_close(everything, elsewhere)
