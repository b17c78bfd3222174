"""The demonstration runs from start to end, without a display, and leaves a report."""

from autogp import demo


def test_the_demo_prints_three_models_and_writes_a_report(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(demo, "EPOCHS", 4)
    some = demo._models
    monkeypatch.setattr(demo, "_models", lambda x: {n: m for n, m in some(x).items() if "Gaussian process" not in n})
    demo.main(tmp_path / "demo")
    printed = capsys.readouterr().out
    assert "autogp GPClassifier" in printed
    assert "scikit-learn logistic regression" in printed
    assert f"{tmp_path / 'demo' / 'report.html'}" in printed.replace("\n", "")
    assert "Handwritten digits" in (tmp_path / "demo" / "report.html").read_text()
