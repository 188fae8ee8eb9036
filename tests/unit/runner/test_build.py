from roost.kernels import NUMERICS
from roost.programs import KvShape
from roost.runner.build import pages_identity

SHAPE = KvShape(num_layers=2, num_kv_heads=3, head_dim=64)


def test_pages_of_another_build_of_the_kernels_are_anothers() -> None:
    ours = pages_identity("weights", "avx2", SHAPE)
    assert ours == pages_identity("weights", "avx2", SHAPE, NUMERICS)
    assert ours != pages_identity("weights", "avx2", SHAPE, NUMERICS + 1)


def test_pages_of_other_weights_instructions_or_shape_are_anothers() -> None:
    narrow = KvShape(num_layers=2, num_kv_heads=3, head_dim=64, dtype="int8")
    identities = {
        pages_identity("weights", "avx2", SHAPE),
        pages_identity("others", "avx2", SHAPE),
        pages_identity("weights", "avx512", SHAPE),
        pages_identity("weights", "avx2", narrow),
    }
    assert len(identities) == 4
