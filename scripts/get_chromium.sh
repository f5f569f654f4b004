#!/bin/sh
# Installs Debian's Chromium where there is none; says plainly when that cannot be done.
set -u
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
cannot() {
    echo "The tests of the report need Chromium, and $1; install it (Debian: apt-get install chromium) and try again." >&2
    exit 1
}
command -v apt-get >/dev/null || cannot "there is no apt-get here to install it with"
as=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || cannot "neither root nor sudo is at hand to install it"
    as="sudo -n"
fi
echo "Installing Chromium for the tests of the report"
$as apt-get update -qq && DEBIAN_FRONTEND=noninteractive $as apt-get install -y -qq chromium >/dev/null ||
    cannot "apt-get could not install it"
