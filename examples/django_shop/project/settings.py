import os
from pathlib import Path

DATA = Path(os.environ.get("SHOP_DATA", "."))  # the folder of the databases

SECRET_KEY = "for development only"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "project.urls"
INSTALLED_APPS = ["backstay.contrib.django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATA / "shop.db"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

BACKSTAY = {"DATABASE": DATA / "flows.db"}
