/* The live pages. The lists poll what changes in their rows, and a limit is edited in place: of them only texts and
   attributes change.
   The overview and the page of a job are fetched again, and what differs in their parts is replaced. */
(function () {
    "use strict";

    const SLOWEST = 60;
    const PATIENCE = 10;
    /* Rows in one request: more would make an address that some servers refuse, and they answer no more than 500. */
    const ROWS_AT_ONCE = 200;
    const KEY = "tenant-slots-every";
    const LEAVES_ITS_PAGE = ".slots-form:not(#slots-limit-form), #tenantqueue_form";
    /* By the clock of the browser, which may be in another zone than the server. */
    const TO_THE_SECOND = { hour: "numeric", minute: "2-digit", second: "2-digit", timeZoneName: "short" };

    function apply(cells) {
        for (const element of document.querySelectorAll("[data-slots]")) {
            const cell = cells[element.dataset.slots];
            if (cell) {
                applyTo(element, cell);
            }
        }
    }

    function applyTo(element, cell) {
        if (cell.text !== undefined && element.textContent !== cell.text) {
            element.textContent = cell.text;
        }
        for (const [name, value] of Object.entries(cell.attrs || {})) {
            if (value === null) {
                element.removeAttribute(name);
            } else if (element.getAttribute(name) !== value) {
                element.setAttribute(name, value);
            }
        }
    }

    /* Its figures are out of date, whatever the page says of its age. */
    function tellDeleted(pk, text) {
        const state = document.querySelector(`[data-slots="${pk}.state"]`);
        if (state) {
            applyTo(state, { text: text, attrs: { "data-state": "deleted" } });
        }
    }

    function rowsOnPage() {
        const keys = [...document.querySelectorAll("[data-slots]")].map((element) => element.dataset.slots);
        return [...new Set(keys.map((key) => key.split(".")[0]).filter((pk) => /^\d+$/.test(pk)))];
    }

    /* One part, which is empty, of a list without rows. */
    function inParts(rows) {
        const parts = [];
        do {
            parts.push(rows.slice(parts.length * ROWS_AT_ONCE, (parts.length + 1) * ROWS_AT_ONCE));
        } while (parts.length * ROWS_AT_ONCE < rows.length);
        return parts;
    }

    function filled(text, values) {
        return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? values[name] : whole));
    }

    class Poller {
        constructor(board) {
            this.board = board;
            this.chosen = document.getElementById("slots-every");
            this.age = document.getElementById("slots-updated");
            this.outdated = document.getElementById("slots-outdated");
            this.updated = Date.now();
            this.failures = 0;
            this.etags = {};
            this.hasTiles = Boolean(document.querySelector('[data-slots="tile.running"]'));
            this.lacksTiles = false;
            this.stopped = false;
        }

        start() {
            const kept = stored();
            if ([...this.chosen.options].some((option) => option.value === kept)) {
                this.chosen.value = kept;
            }
            this.chosen.addEventListener("change", () => {
                store(this.chosen.value);
                this.failures = 0;
                this.plan(0);
            });
            document.addEventListener("visibilitychange", () => this.plan(0));
            window.setInterval(() => this.tellAge(), 1000);
            this.plan();
            this.tellAge();
        }

        every() {
            return Number(this.chosen.value);
        }

        plan(seconds) {
            window.clearTimeout(this.timer);
            if (this.stopped || document.hidden || !this.every()) {
                return;
            }
            const pause = Math.min(SLOWEST, this.every() * 2 ** this.failures);
            this.timer = window.setTimeout(() => this.poll(), 1000 * (seconds === undefined ? pause : seconds));
        }

        /* One request at a time, and none for longer than one waits: those of a server that hangs would pile up. */
        async poll() {
            if (this.asking) {
                return;
            }
            this.asking = new AbortController();
            const patience = window.setTimeout(() => this.asking.abort(), 1000 * PATIENCE);
            try {
                await this.askAll();
            } catch (error) {
                this.fail(this.board.dataset.noAnswer);
            } finally {
                window.clearTimeout(patience);
                this.asking = null;
            }
            this.plan();
        }

        async askAll() {
            for (const [at, rows] of inParts(rowsOnPage()).entries()) {
                if (!this.stopped) {
                    await this.ask(`rows ${at}`, rows);
                }
            }
            if (this.lacksTiles && !this.stopped) {
                await this.ask("tiles", []);
            }
            if (!this.stopped) {
                this.succeed();
            }
        }

        async ask(what, rows) {
            const query = new URLSearchParams({ rows: rows.join(","), every: this.chosen.value });
            const answer = await fetch(`${this.board.dataset.url}?${query}`, {
                headers: { Accept: "application/json", "If-None-Match": this.etags[what] || "" },
                cache: "no-store",
                redirect: "manual",
                signal: this.asking.signal,
            });
            await this.take(what, answer, rows);
        }

        async take(what, answer, rows) {
            if (answer.type === "opaqueredirect" || answer.status === 403) {
                this.stopped = true;
                this.fail(this.board.dataset.signedOut);
                return;
            }
            if (answer.status === 200) {
                const cells = (await answer.json()).cells;
                apply(cells);
                rows.filter((pk) => !(`${pk}.state` in cells)).forEach((pk) => tellDeleted(pk, this.board.dataset.deleted));
                this.etags[what] = answer.headers.get("ETag") || "";
                if (what !== "tiles") {
                    this.lacksTiles = rows.length > 0 && this.hasTiles && !("tile.running" in cells);
                }
            } else if (answer.status !== 304) {
                throw new Error(String(answer.status));
            }
        }

        succeed() {
            this.failures = 0;
            this.updated = Date.now();
            this.outdated.textContent = "";
            this.board.removeAttribute("data-is-outdated");
            this.tellAge();
        }

        fail(reason) {
            this.failures += 1;
            const time = new Date(this.updated).toLocaleTimeString(document.documentElement.lang || undefined, TO_THE_SECOND);
            this.outdated.textContent = filled(this.board.dataset.outdated, { time: time, reason: reason });
            this.board.setAttribute("data-is-outdated", "yes");
        }

        tellAge() {
            const seconds = Math.round((Date.now() - this.updated) / 1000);
            const texts = this.board.dataset;
            const running = seconds < 1 ? texts.just : filled(texts.updated, { seconds: seconds });
            this.age.textContent = this.every() && !this.stopped ? running : texts.off;
        }
    }

    /* A page that is fetched again as a whole. */
    class PagePoller extends Poller {
        async askAll() {
            const answer = await fetch(window.location.href, {
                headers: { Accept: "text/html" },
                cache: "no-store",
                redirect: "manual",
                signal: this.asking.signal,
            });
            if (answer.type === "opaqueredirect" || answer.status === 403) {
                this.stopped = true;
                this.fail(this.board.dataset.signedOut);
                return;
            }
            if (!answer.ok) {
                throw new Error(String(answer.status));
            }
            this.show(new DOMParser().parseFromString(await answer.text(), "text/html"));
        }

        show(page) {
            if (!page.querySelector("[data-slots-part]")) {
                this.fail(this.board.dataset.signedOut); /* a page to sign in, or of a site that is being maintained */
                return;
            }
            for (const part of document.querySelectorAll("[data-slots-part]")) {
                const fresh = page.querySelector(`[data-slots-part="${part.dataset.slotsPart}"]`);
                if (fresh) {
                    renew(part, fresh);
                }
            }
            this.stopped = !page.getElementById("slots-live");
            this.succeed();
        }
    }

    /* Where the control that somebody has come to is gone, they stay in the part. */
    function renew(part, fresh) {
        const isUsed = part.contains(document.activeElement);
        become(part, fresh);
        if (isUsed && !part.contains(document.activeElement)) {
            part.tabIndex = -1;
            part.focus({ preventScroll: true });
        }
    }

    /* Node by node: what stays keeps the focus, a selection, how far it was scrolled and whether it is open. */
    function become(shown, fresh) {
        const [old, wanted] = [[...shown.childNodes], [...fresh.childNodes]];
        wanted.forEach((node, at) => {
            if (at >= old.length) {
                shown.append(node);
            } else if (!isOneThing(old[at], node)) {
                old[at].replaceWith(node);
            } else if (node.nodeType === Node.ELEMENT_NODE) {
                takeAttributes(old[at], node);
                become(old[at], node);
            } else if (old[at].data !== node.data) {
                old[at].data = node.data;
            }
        });
        old.slice(wanted.length).forEach((node) => node.remove());
    }

    /* A button that does something else, or a section about something else, is another one. */
    function isOneThing(old, node) {
        const names = ["id", "aria-labelledby", "href", "name", "value"];
        return (
            old.nodeName === node.nodeName &&
            (node.nodeType !== Node.ELEMENT_NODE ||
                names.every((name) => old.getAttribute(name) === node.getAttribute(name)))
        );
    }

    function takeAttributes(old, node) {
        for (const { name } of [...old.attributes]) {
            if (!node.hasAttribute(name) && name !== "open") {
                old.removeAttribute(name);
            }
        }
        for (const { name, value } of [...node.attributes]) {
            if (old.getAttribute(name) !== value) {
                old.setAttribute(name, value);
            }
        }
    }

    function stored() {
        try {
            return window.localStorage.getItem(KEY);
        } catch (error) {
            return null;
        }
    }

    function store(value) {
        try {
            window.localStorage.setItem(KEY, value);
        } catch (error) {
            /* A browser that keeps nothing polls at the interval of the page. */
        }
    }

    class LimitDialog {
        constructor(dialog) {
            this.dialog = dialog;
            this.form = document.getElementById("slots-limit-form");
            this.number = document.getElementById("slots-max-job");
            this.effect = document.getElementById("slots-effect");
            this.error = document.getElementById("slots-dialog-error");
        }

        start() {
            document.addEventListener("click", (event) => {
                const link = event.target.closest("a[data-slots-edit]");
                if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
                    event.preventDefault();
                    this.open(link);
                }
            });
            this.number.addEventListener("input", () => this.tellEffect());
            this.form.addEventListener("submit", (event) => {
                event.preventDefault();
                this.send();
            });
            document.getElementById("slots-close").addEventListener("click", () => this.dialog.close());
            this.dialog.addEventListener("close", () => this.giveUp());
        }

        open(link) {
            this.link = link;
            this.form.reset();
            this.show("");
            document.getElementById("slots-dialog-row").textContent = link.dataset.slotsEdit;
            document.getElementById("slots-version").value = link.dataset.version;
            this.number.value = link.dataset.limit;
            document.getElementById("slots-share").value = link.dataset.share;
            this.showOverride(link.dataset);
            this.tellEffect();
            this.dialog.showModal();
            this.number.select();
        }

        showOverride(row) {
            const override = document.getElementById("slots-override");
            override.textContent = row.override;
            override.hidden = !row.override;
            document.getElementById("slots-until").value = row.until;
            document.getElementById("slots-shown-until").value = row.until;
        }

        tellEffect() {
            const running = Number(this.link.dataset.running);
            const limit = Number(this.number.value);
            const values = { running: running, limit: limit, over: running - limit };
            const texts = this.form.dataset;
            this.effect.textContent = this.number.value === "" ? "" : filled(running > limit ? texts.some : texts.none, values);
        }

        /* Once, however often it is clicked: the second time would meet the first one's change. */
        async send() {
            if (this.sending) {
                return;
            }
            this.sending = new AbortController();
            const patience = window.setTimeout(() => this.giveUp(), 1000 * PATIENCE);
            try {
                const answer = await fetch(this.link.href, {
                    method: "POST",
                    body: new FormData(this.form),
                    headers: { Accept: "application/json" },
                    redirect: "manual",
                    signal: this.sending.signal,
                });
                if (answer.type === "opaqueredirect" || answer.status === 403) {
                    this.show(answer.status === 403 ? this.form.dataset.refused : this.form.dataset.signedOut);
                } else {
                    this.take(answer, await answer.json());
                }
            } catch (error) {
                this.show(this.sending.signal.aborted ? this.form.dataset.noAnswer : this.form.dataset.failed);
            } finally {
                window.clearTimeout(patience);
                this.sending = null;
            }
        }

        giveUp() {
            if (this.sending) {
                this.sending.abort();
            }
        }

        take(answer, data) {
            if (data.errors) {
                this.show(Object.values(data.errors).flat().join(" "));
            } else if (answer.status === 409) {
                this.show(data.message);
                document.getElementById("slots-version").value = data.theirs.version;
                document.getElementById("slots-shown-until").value = data.theirs.until;
            } else if (answer.ok) {
                apply(data.cells);
                this.dialog.close();
                this.link.focus();
            } else {
                throw new Error(String(answer.status));
            }
        }

        show(text) {
            this.error.textContent = text;
            this.error.hidden = !text;
        }
    }

    /* Of a page that is left by it: once, however often it is clicked, as in the dialog. Whoever comes back to the page,
       or gets no answer, can send it again. */
    function sendOnce(form) {
        let isSent = false;
        const release = () => {
            isSent = false;
        };
        form.addEventListener("submit", (event) => {
            if (isSent) {
                event.preventDefault();
            } else {
                isSent = true;
                window.setTimeout(release, 1000 * PATIENCE);
            }
        });
        window.addEventListener("pageshow", release);
    }

    document.addEventListener("DOMContentLoaded", () => {
        const board = document.getElementById("slots-live");
        const dialog = document.getElementById("slots-dialog");
        if (board) {
            (board.dataset.url ? new Poller(board) : new PagePoller(board)).start();
        }
        if (dialog && dialog.showModal) {
            new LimitDialog(dialog).start();
        }
        document.querySelectorAll(LEAVES_ITS_PAGE).forEach(sendOnce);
    });
})();
