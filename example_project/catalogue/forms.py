from __future__ import annotations

from typing import Any

from django import forms

MOST_BYTES = 5 * 1024 * 1024


class FeedForm(forms.Form):
    file = forms.FileField(
        label="Feed",
        max_length=150,
        help_text="A CSV file of at most 5 MB, with columns separated by comma, semicolon or tab.",
        widget=forms.ClearableFileInput(attrs={"accept": ".csv,.tsv,.txt,text/csv"}),
    )

    def clean_file(self) -> Any:
        file = self.cleaned_data["file"]
        if file.size > MOST_BYTES:
            raise forms.ValidationError("The file is larger than 5 MB. Split it into several feeds.")
        return file
