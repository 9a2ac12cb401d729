"""Tests of the web view below a path of the project, as its users see it. They run with the apps and middleware of ``APPS``."""

import re
from html import unescape
from io import StringIO
from urllib.parse import quote, urlencode

from asgiref.sync import async_to_sync, sync_to_async
from celery import current_app
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import AsyncClient, Client, TestCase, override_settings
from django.urls import include, path
from httpx2 import ASGITransport, Response
from httpx2 import AsyncClient as Browser
from starlette.applications import Starlette
from starlette.routing import Mount

from bakery.sagas import ordered
from celery_sagas.web.access import Access
from celery_sagas.web.asgi import application

FORM = "application/x-www-form-urlencoded"
ROOT = "/ops/sagas"
#: What is asked for with each level of access, by HTML and by JSON.
PATHS = [
    *("/", "/find?saga=baking&key=7", "/find?saga=baking&key=none", "/stuck", "/dead", "/activity", "/audit", "/aggregates"),
    *("/sagas/baking", "/sagas/baking?status=x", "/sagas/none", "/instances/none", "/dead/none", "/none", "/timeline"),
    *("/static/sagas.css", "/sagas/baking?after=%FF%00", "/stuck?older=never", "/sagas/b%2Fc", "/sagas/bäcker"),
]
#: What differs between two visits.
FLEETING = re.compile(r'name="token" value="[^"]*"|\d+ m?s ago|\b\d+(\.\d+)? m?s\b|"\w+_m?s":[\d.]+')


async def in_this_thread(function, *args):
    """Call a function where the test has its transaction."""
    return await sync_to_async(function)(*args)


async def asked(transport, path, accept) -> Response:
    """Return what the application itself answers."""
    async with Browser(transport=transport, base_url="http://testserver") as browser:
        return await browser.get(path, headers={"accept": accept})


class TestVisits(TestCase):
    @classmethod
    def setUpTestData(cls):
        ordered.delay(order_id="7")

    def visitor(self, level, client=Client, **options):
        user = User.objects.create_user(f"{level} {client.__name__}")
        if level is not None:
            user.user_permissions.add(Permission.objects.get(codename=level, content_type__app_label="celery_sagas"))
        visitor = client(**options)
        visitor.force_login(user)
        return visitor

    def instance(self, visitor):
        """Return the path of the page of an instance, and its parameters."""
        return visitor.get(f"{ROOT}/find", {"saga": "baking", "key": "7"}).url

    def pausing(self, visitor):
        """Return the path of the page that pauses it."""
        page = visitor.get(self.instance(visitor))
        return re.search(r'"([^"]*/pause[^"]*)"', page.text)[1]

    def test_answers_are_those_of_the_application(self):
        app = current_app._get_current_object()
        for level in (None, "look", "read", "act"):
            visitor = self.visitor(level)
            access = None if level is None else lambda _, level=level: Access(level, f"{level} Client")
            site = application(app, access, ["testserver"], None, in_this_thread)
            transport = ASGITransport(Starlette(routes=[Mount(ROOT, site)]))
            paths = [*PATHS, *([] if level is None else [self.instance(visitor).removeprefix(ROOT)])]
            for accept in ("text/html", "application/json"):
                for each in paths:
                    with self.subTest(level=level, accept=accept, path=each):
                        ours = visitor.get(ROOT + each, headers={"accept": accept})
                        theirs = async_to_sync(asked)(transport, ROOT + each, accept)
                        assert ours.status_code == theirs.status_code
                        self.assertEqual(FLEETING.sub("", ours.text), FLEETING.sub("", theirs.text))
                        for name, value in theirs.headers.items():
                            if name not in ("content-length", "set-cookie", "location"):
                                assert ours.headers[name] == value
                        assert ours.headers.get("location") == theirs.headers.get("location")

    def test_whoever_is_not_known_logs_in_first(self):
        answer = Client().get(f"{ROOT}/sagas/baking?status=x")
        assert answer.status_code == 302
        assert answer.url == "/enter/?next=/ops/sagas/sagas/baking%3Fstatus%3Dx"
        assert Client().get(f"{ROOT}/", headers={"accept": "application/json"}).status_code == 403
        assert Client().post(f"{ROOT}/instances/1/pause").status_code == 403
        assert self.visitor(None).get(f"{ROOT}/").status_code == 403

    def test_superusers_may_act(self):
        visitor = Client()
        visitor.force_login(User.objects.create_superuser("root"))
        assert "/pause" in visitor.get(self.instance(visitor)).text

    def test_users_who_are_not_active_see_nothing(self):
        visitor = self.visitor("act")
        User.objects.update(is_active=False)
        assert visitor.get(f"{ROOT}/").status_code == 302

    def form(self, visitor, url):
        page = visitor.get(url)
        assert page.status_code == 200, page.text
        values = re.findall(r'<(?:input|textarea)[^>]*name="([^"]*)"(?:[^>]*value="([^"]*)")?', page.text)
        return {name: unescape(value) for name, value in values}

    def test_acts_with_the_name_of_the_user(self):
        visitor = self.visitor("act", enforce_csrf_checks=True)
        pausing = self.pausing(visitor)
        form = {**self.form(visitor, pausing), "reason": "why"}
        done = visitor.post(pausing, urlencode(form), content_type=FORM)
        assert done.status_code == 303
        assert done.url == self.instance(visitor) + "&did=pause"
        audit = visitor.get(f"{ROOT}/audit", headers={"accept": "application/json"}).json()
        assert [(each["action"], each["actor"], each["reason"]) for each in audit["items"]] == [("pause", "act Client", "why")]

    def test_forms_of_others_are_refused(self):
        visitor, other = self.visitor("act"), Client()
        other.force_login(User.objects.create_superuser("other"))
        pausing = self.pausing(visitor)
        form = {**self.form(visitor, pausing), "reason": "why"}
        for client, values, headers in [
            (visitor, {**form, "token": ""}, {}),
            (visitor, {**form, "token": form["token"] + "x"}, {}),
            (visitor, form, {"sec-fetch-site": "cross-site"}),
            (visitor, form, {"origin": "https://elsewhere.example"}),
            (other, form, {}),
        ]:
            answer = client.post(pausing, urlencode(values), content_type=FORM, headers=headers)
            assert answer.status_code == 403, answer.text
        assert visitor.get(pausing).status_code == 200

    @override_settings(ALLOWED_HOSTS=["shop.example.com"])
    def test_hosts_are_those_of_the_project(self):
        visitor = self.visitor("read")
        with self.assertLogs("django.security.DisallowedHost"):
            assert visitor.get(f"{ROOT}/", headers={"host": "elsewhere.example"}).status_code == 400
        assert visitor.get(f"{ROOT}/", headers={"host": "shop.example.com"}).status_code == 200

    @override_settings(ROOT_URLCONF=(path("<str:shop>/größe/", include("celery_sagas.contrib.django.urls")),))
    def test_any_path(self):
        """Also one that is part of the request."""
        visitor = self.visitor("act")
        root = quote("/a;Domain=b/größe")
        url = visitor.get(f"{root}/find", {"saga": "baking", "key": "7"}).url
        assert url.startswith(f"{root}/instances/")
        url = url.replace("?", "/pause?")
        form = {**self.form(visitor, url), "reason": "why"}
        assert (visitor.cookies["celery_sagas"]["path"], visitor.cookies["celery_sagas"]["domain"]) == (root, "")
        assert visitor.post(url, urlencode(form), content_type=FORM).status_code == 303

    @override_settings(MIDDLEWARE=[])
    def test_middleware_that_is_missing(self):
        with self.assertRaisesMessage(Exception, "the web view needs AuthenticationMiddleware in MIDDLEWARE"):
            Client().get(f"{ROOT}/")

    def test_large_form(self):
        visitor = self.visitor("act")
        pausing = self.pausing(visitor)
        with self.assertLogs("django"):
            assert visitor.post(pausing, "a=" + "x" * 3_000_000, content_type=FORM).status_code in (400, 413)
        assert visitor.post(pausing, "a=" + "x" * 1_500_000, content_type=FORM).status_code == 413

    def test_permissions_have_no_rows(self):
        """So that a dump works."""
        for option in ([], ["--all"]):
            output = StringIO()
            call_command("dumpdata", "celery_sagas", *option, stdout=output)
            assert output.getvalue().strip() == "[]"

    def test_event_loop(self):
        visitor = self.visitor("look", AsyncClient)
        assert async_to_sync(visitor.get)(f"{ROOT}/sagas/baking").status_code == 200
