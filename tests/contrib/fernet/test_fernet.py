"""The codec that encrypts with Fernet."""

import json
import subprocess
import sys
import traceback

import pytest
from celery import Celery
from cryptography.fernet import Fernet

from celery_sagas.contrib.fernet import VARIABLE, DecryptingCodec, FernetCodec, codec, decrypting
from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.encoded.backend import EncodedBackend
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp

ABOUT = json.dumps(["state", "1"])
TEXT = '{"diagnosis": "é"}'
PATH = "celery_sagas.contrib.fernet:codec"


def new_key() -> str:
    return Fernet.generate_key().decode()


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    """The key of the environment, which the codec of the module has not read before."""
    key = new_key()
    monkeypatch.setenv(VARIABLE, key)
    monkeypatch.delitem(codec.__dict__, "_fernet", raising=False)
    return key


def test_text_comes_back():
    codec = FernetCodec([new_key()])
    encoded = codec.encode(TEXT, ABOUT)
    assert "diagnosis" not in encoded
    assert codec.decode(encoded, ABOUT) == TEXT


def test_text_is_bound_to_what_it_is_about():
    codec = FernetCodec([new_key()])
    with pytest.raises(ValueError, match="about something else"):
        codec.decode(codec.encode(TEXT, ABOUT), json.dumps(["state", "2"]))


def test_first_key_encrypts_and_each_decrypts():
    old, new = new_key(), new_key()
    encoded = FernetCodec([old]).encode(TEXT, ABOUT)
    rotated = FernetCodec([new, old])
    assert rotated.decode(encoded, ABOUT) == TEXT
    assert FernetCodec([new]).decode(rotated.encode(TEXT, ABOUT), ABOUT) == TEXT
    with pytest.raises(ValueError, match="none of the keys"):
        FernetCodec([new]).decode(encoded, ABOUT)


def test_one_that_only_decrypts():
    key = new_key()
    decrypting = DecryptingCodec([key])
    assert decrypting.encode(TEXT, ABOUT) == TEXT
    assert decrypting.decode(FernetCodec([key]).encode(TEXT, ABOUT), ABOUT) == TEXT


@pytest.mark.parametrize("encoded", ["", "é", "gAAAAA", "x" * 99])
def test_garbage_is_not_decoded(encoded):
    with pytest.raises(ValueError, match="none of the keys"):
        FernetCodec([new_key()]).decode(encoded, ABOUT)


@pytest.mark.parametrize("keys", [[], "a text", ["hunter2"], [b"hunter2"]])
def test_keys_that_are_none_are_refused_and_not_shown(keys):
    with pytest.raises(ConfigurationError, match="generate_key") as caught:
        FernetCodec(keys).encode(TEXT, ABOUT)
    shown = "".join(traceback.format_exception(caught.value)) + repr(FernetCodec(keys))
    assert "hunter2" not in shown
    assert "a text" not in shown


def test_keys_come_from_the_environment(key: str, monkeypatch: pytest.MonkeyPatch, new_app: NewApp):
    old = new_key()
    monkeypatch.setenv(VARIABLE, f" {key} ,{old},")
    app = new_app(saga_codec=PATH)
    assert isinstance(runtime_of(app).backend, EncodedBackend)
    assert codec.decode(FernetCodec([old]).encode(TEXT, ABOUT), ABOUT) == TEXT


def test_app_that_only_decrypts_starts(key: str, new_app: NewApp):
    app = new_app(saga_codec="celery_sagas.contrib.fernet:decrypting")
    assert isinstance(runtime_of(app).backend, EncodedBackend)


@pytest.mark.parametrize("name", ["codec", "decrypting"])
def test_app_without_keys_does_not_start(key: str, monkeypatch: pytest.MonkeyPatch, new_app: NewApp, name: str):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delitem(decrypting.__dict__, "_fernet", raising=False)
    with pytest.raises(ConfigurationError, match=f"there is no key to encrypt with. Set {VARIABLE}: python -c"):
        runtime_of(new_app(saga_codec=f"celery_sagas.contrib.fernet:{name}"))


def test_app_without_a_codec_has_no_wrapper(app: Celery):
    assert not isinstance(runtime_of(app).backend, EncodedBackend)


def test_report_shows_no_key(key: str, new_app: NewApp):
    app = new_app(saga_codec=PATH)
    runtime_of(app)
    assert key not in app.bugreport() + repr(app.conf) + repr(codec) + repr(runtime_of(app).backend)


def test_without_cryptography_it_says_what_to_install():
    code = "import sys; sys.modules['cryptography.fernet'] = None; import celery_sagas.contrib.fernet"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'Run pip install "celery-sagas[encryption]"' in process.stderr
