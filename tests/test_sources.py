from moetune_kernels import sources


def test_the_hash_follows_the_code_and_not_its_comments(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "__file__", str(tmp_path / "sources.py"))
    texts = [
        '"""One."""\n\n\ndef f():\n    """Two."""\n    return 1\n',
        "# three\ndef f():\n    return 1\n",
        "def f():\n    return 2\n",
    ]
    hashes = []
    for number, text in enumerate(texts):
        (tmp_path / f"m{number}.py").write_text(text)
        hashes.append(sources.source_hash((f"m{number}.py",)))
    assert hashes[0] == hashes[1] != hashes[2]
